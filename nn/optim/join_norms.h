// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_OPTIM_JOIN_NORMS_H_
#define CROSSHATCH_NN_OPTIM_JOIN_NORMS_H_

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "crosshatch/mesh/device_mesh.h"

namespace crosshatch::nn {

/// Returns, on every rank of `over`, the norm of gradients that are on
/// different meshes on different ranks, such as pipeline stages. The norm of
/// each set of ranks whose parameters are on the same meshes counts once. All
/// ranks of `over` call it and wait for each other.
/// \param meshes the meshes of this rank's parameters; if empty, it has them
///     alone.
/// \param norm the norm over those meshes, the same on all of their ranks, or
///     an error.
/// \error the rank's own error in `norm`, otherwise that of the first rank with
///     one, naming the rank; kFailedPrecondition naming two ranks whose sets of
///     ranks overlap and differ, or whose norms over the same ranks differ;
///     errors of communication.
absl::StatusOr<double> JoinNorms(const DeviceMesh& over,
                                 absl::Span<const DeviceMesh> meshes,
                                 const absl::StatusOr<double>& norm,
                                 double norm_type);

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_OPTIM_JOIN_NORMS_H_
