// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_OPTIM_JOIN_NORMS_H_
#define CROSSHATCH_NN_OPTIM_JOIN_NORMS_H_

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "crosshatch/mesh/device_mesh.h"

namespace crosshatch::nn {

/// Returns, on every rank of `over`, the norm of gradients that ranks hold on
/// different meshes, such as those of pipeline stages: of each set of ranks
/// whose parameters are on the same meshes the norm counts once. Called by all
/// ranks of `over`, which wait for each other.
/// \param meshes of this rank's parameters; with none, they are its own alone.
/// \param norm over those meshes, the same on all of their ranks, or why there
///     is none.
/// \error the rank's own error in place of its norm, or else that of the first
///     rank that has one, naming the rank; kFailedPrecondition naming two ranks
///     whose sets of ranks meet and differ, or whose norms differ over the same
///     ranks; what went wrong between the ranks.
absl::StatusOr<double> JoinNorms(const DeviceMesh& over,
                                 absl::Span<const DeviceMesh> meshes,
                                 const absl::StatusOr<double>& norm,
                                 double norm_type);

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_OPTIM_JOIN_NORMS_H_
