// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_VERIFY_H_
#define CROSSHATCH_DTENSOR_VERIFY_H_

/// \file
/// Checks that ranks agree on a distributed tensor: for parts from outside, and
/// to find where replicas diverge. Each check waits for the current stream and
/// for the other ranks.

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "crosshatch/dtensor/dispatch/replica_check.h"  // IWYU pragma: export
#include "crosshatch/dtensor/layout/layout.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/tensor/shape.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

/// Returns OK if all ranks that replicate a part of `t` hold the same bits (so
/// 0 and -0 differ, and a NaN equals itself). Called by every rank of the mesh,
/// with the same result on all of them. OK in a dry run.
/// \error kFailedPrecondition naming two ranks that differ; an error of the
///     engine.
/// \pre t.is_distributed()
absl::Status VerifyReplicas(const Tensor& t);

/// FromLocal with checks between ranks: compares layout, sizes and dtype,
/// compares every rank's part with the shape of its shard, then calls
/// VerifyReplicas. An error on one rank is an error on all.
/// \error kInvalidArgument naming the rank and both sides; as VerifyReplicas.
absl::StatusOr<Tensor> VerifiedFromLocal(const Tensor& local,
                                         const DeviceMesh& mesh,
                                         const Layout& layout, ShapeView sizes,
                                         const Layout& grad_layout);

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_VERIFY_H_
