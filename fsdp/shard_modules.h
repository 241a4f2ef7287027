// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_FSDP_SHARD_MODULES_H_
#define CROSSHATCH_FSDP_SHARD_MODULES_H_

/// \file
/// ShardModules: the common implementation of FullyShard and Replicate.

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "crosshatch/fsdp/policy.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/module.h"

namespace crosshatch::fsdp {

/// Shards `modules`, with the errors of FullyShard.
/// \param replicated whether Replicate calls it: the modules and all modules
///     below them then belong to no tree of an ancestor.
absl::Status ShardModules(absl::Span<nn::Module* const> modules,
                          const DeviceMesh& mesh,
                          const FullyShardOptions& options, bool replicated);

}  // namespace crosshatch::fsdp

#endif  // CROSSHATCH_FSDP_SHARD_MODULES_H_
