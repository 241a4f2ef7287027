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

/// Replicates the parameters of `module` on each rank of `mesh` and sums their
/// gradients over it, with one all-reduce per group. It is HSDP with one
/// sharding rank: mixed precision, accumulation and ShardedModule work as for
/// FullyShard. Parameters are neither freed after forward nor gathered.
///
/// FullyShard on an ancestor ignores `module` and all modules below it. A
/// module below that FullyShard was called on is the root of its own tree.
///
/// \param mesh 1-D.
/// \error As FullyShard.
/// \error kInvalidArgument if `mesh` is not 1-D, if a parameter is a DTensor,
///     or if an option concerns sharding: reshard_after_forward,
///     post_forward_mesh_size, shard_dim, ragged_shard, mesh_of, replicate_axis
///     or extension.
absl::Status Replicate(nn::Module& module, const DeviceMesh& mesh,
                       const FullyShardOptions& options = {});

}  // namespace crosshatch::fsdp

#endif  // CROSSHATCH_FSDP_REPLICATE_H_
