// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_FSDP_REPLICATE_H_
#define CROSSHATCH_FSDP_REPLICATE_H_

/// \file
/// Replicate: data parallelism without sharding, on the runtime of FullyShard.

#include "absl/status/status.h"
#include "crosshatch/fsdp/policy.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/module.h"

namespace crosshatch::fsdp {

/// Keeps the parameters of `module` whole on each rank of `mesh` and sums their
/// gradients over it, one all-reduce a group, as HSDP with one sharding rank:
/// mixed precision, accumulation and the controls of ShardedModule are those of
/// FullyShard. Parameters are neither freed after forward nor sent for it.
///
/// What is below `module` is ignored whole by FullyShard on a module above, and
/// is no part of its tree. Where FullyShard was called below `module`, that
/// part is a tree of its own.
///
/// \param mesh 1-D.
/// \error as FullyShard; kInvalidArgument for a mesh of other ndim, for a
///     DTensor parameter, and for options that are about sharding
///     (reshard_after_forward, post_forward_mesh_size, shard_dim, mesh_of,
///     replicate_axis).
absl::Status Replicate(nn::Module& module, const DeviceMesh& mesh,
                       const FullyShardOptions& options = {});

}  // namespace crosshatch::fsdp

#endif  // CROSSHATCH_FSDP_REPLICATE_H_
