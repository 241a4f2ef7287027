// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_FSDP_SETTINGS_H_
#define CROSSHATCH_FSDP_SETTINGS_H_

/// \file
/// Settings: the options of a sharded module that a program may change between
/// iterations, by Configure (sharded_module.h).

#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "crosshatch/fsdp/custom_comm.h"
#include "crosshatch/fsdp/policy.h"
#include "crosshatch/nn/module.h"

namespace crosshatch::fsdp {

/// Settings of one sharded module.
struct Settings {
  /// \name Parameters
  /// @{
  /// See FullyShardOptions::reshard_after_forward.
  std::optional<bool> reshard_after_forward = {};
  /// Whether backward frees the unsharded parameters. If false, they stay for
  /// the next microbatch; set it to true before the last one. Forward checks
  /// that the shards have not changed while parameters are unsharded.
  bool reshard_after_backward = true;
  /// Whether the module's backward needs its parameters (that of an embedding
  /// does not). If false, neither backward nor prefetching unshards them for
  /// it.
  bool unshard_in_backward = true;
  /// Whether to keep the memory of unsharded parameters, at the same addresses,
  /// while they are sharded. The values are not kept.
  bool keep_unsharded = false;
  /// @}

  /// \name Gradients
  /// @{
  /// Whether backward reduces gradients. If false, they stay unsharded in the
  /// reduce dtype, and the next backward that reduces includes them.
  bool requires_gradient_sync = true;
  /// HSDP: whether gradients are summed over the replicas. If false, they are
  /// summed over the sharding ranks only and accumulate there. The next
  /// backward that sums over the replicas includes them. No effect without
  /// replicas.
  bool requires_all_reduce = true;
  /// Whether parameters without a gradient take part in reductions, with zeros,
  /// and receive the gradient of the other ranks. For models of which a rank
  /// may use only a part in a step.
  ///
  /// So that communication does not depend on use, the groups of such modules
  /// are unsharded when the outermost forward of the tree begins, in the order
  /// of the modules. They stay unsharded until the end of backward and are
  /// reduced there in the same order. All ranks must run the same outermost
  /// forwards and backwards.
  bool reduce_unused_params = false;
  /// The root's `buffers` applies to the whole tree.
  ReductionOptions reduction = {};
  /// Null: the built-in collectives.
  std::shared_ptr<const CustomComm> custom_comm = nullptr;
  /// @}

  /// \name Prefetching
  /// @{
  /// Sharded modules to unshard when this module's forward (backward) begins,
  /// in this order, instead of those that `prefetch` selects. An empty list
  /// disables prefetching. The modules may be destroyed later.
  std::optional<std::vector<nn::Module*>> forward_prefetch_modules = {};
  std::optional<std::vector<nn::Module*>> backward_prefetch_modules = {};
  /// @}

  /// \name Settings of the whole tree: only the root's values apply
  /// @{
  PrefetchOptions prefetch = {};
  /// Whether this is the last backward of the iteration. If false, compute does
  /// not wait for reductions at the end of backward, so gradients must not be
  /// read yet, and prefetching continues into the backward of earlier forwards.
  bool is_last_backward = true;
  /// Whether reductions wait for ShardedModule::FinalizeBackward. Until then
  /// gradients accumulate unsharded.
  bool manual_finalization = false;
  /// @}
};

/// Checks the values of options that may be changed later.
/// \param what the caller, with which messages begin, e.g. "FullyShard".
/// \error kInvalidArgument naming the option.
absl::Status CheckOptions(const char* what, const PrefetchOptions& prefetch,
                          const ReductionOptions& reduction);

}  // namespace crosshatch::fsdp

#endif  // CROSSHATCH_FSDP_SETTINGS_H_
