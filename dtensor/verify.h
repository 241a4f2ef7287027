// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_VERIFY_H_
#define CROSSHATCH_DTENSOR_VERIFY_H_

/// \file
/// Whether ranks agree on a distributed tensor. For parts that come from
/// outside, and for finding where replicas drift apart; each check waits for
/// the current stream and for the other ranks.

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "crosshatch/dtensor/dispatch/replica_check.h"  // IWYU pragma: export
#include "crosshatch/dtensor/layout/layout.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/tensor/shape.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

/// OK if all ranks that replicate each other's part of `t` hold the same bits
/// (so 0 and -0 differ, and a NaN equals itself). Called by every rank of the
/// mesh, and the same on all of them. In a dry run OK.
/// \error kFailedPrecondition naming two ranks that differ; what the engine
///     says.
/// \pre t.is_distributed()
absl::Status VerifyReplicas(const Tensor& t);

/// FromLocal that trusts no rank: compares layout, sizes and dtype between the
/// ranks, checks every rank's part against the shape of its shard, then
/// VerifyReplicas. What is wrong on one rank is an error on all.
/// \error kInvalidArgument naming the rank and both sides; as VerifyReplicas.
absl::StatusOr<Tensor> VerifiedFromLocal(const Tensor& local,
                                         const DeviceMesh& mesh,
                                         const Layout& layout, ShapeView sizes,
                                         const Layout& grad_layout);

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_VERIFY_H_
