// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_FSDP_SHARD_MODULES_H_
#define CROSSHATCH_FSDP_SHARD_MODULES_H_

/// \file
/// ShardModules: what FullyShard and Replicate have in common.

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "crosshatch/fsdp/policy.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/module.h"

namespace crosshatch::fsdp {

/// Does what FullyShard of `modules` does, whose errors it gives.
/// \param replicated they are no part of a tree above, nor is what is below
///     them.
absl::Status ShardModules(absl::Span<nn::Module* const> modules,
                          const DeviceMesh& mesh,
                          const FullyShardOptions& options, bool replicated);

}  // namespace crosshatch::fsdp

#endif  // CROSSHATCH_FSDP_SHARD_MODULES_H_
