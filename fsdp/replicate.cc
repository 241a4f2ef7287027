// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/fsdp/replicate.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/fsdp/shard_modules.h"

namespace crosshatch::fsdp {

absl::Status Replicate(nn::Module& module, const DeviceMesh& mesh,
                       const FullyShardOptions& options) {
  if (mesh.ndim() != 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "Replicate takes a mesh of one axis, not ", mesh.ToString()));
  }
  if (options.reshard_after_forward.has_value() ||
      options.post_forward_mesh_size != 0 || options.shard_dim ||
      options.ragged_shard.has_value() || options.mesh_of ||
      !options.replicate_axis.empty()) {
    return absl::InvalidArgumentError(
        "Replicate shards nothing: do not set reshard_after_forward, "
        "post_forward_mesh_size, shard_dim, ragged_shard, mesh_of or "
        "replicate_axis");
  }
  if (options.extension != nullptr) {
    return absl::InvalidArgumentError(
        "Replicate takes plain parameters; for tensor-parallel ones call "
        "FullyShard on a mesh of two axes whose second has one rank");
  }
  const std::string& axis = mesh.axis_names()[0];
  CH_ASSIGN_OR_RETURN(
      const DeviceMesh whole,
      mesh.Unflatten(
          axis, {{axis, mesh.size(0)}, {absl::StrCat(axis, "_whole"), 1}}));
  FullyShardOptions kept = options;
  kept.reshard_after_forward = false;
  return ShardModules({&module}, whole, kept, /*replicated=*/true);
}

}  // namespace crosshatch::fsdp
