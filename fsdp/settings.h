// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_FSDP_SETTINGS_H_
#define CROSSHATCH_FSDP_SETTINGS_H_

/// \file
/// Settings: what a program may change of a sharded module between iterations,
/// by Configure (sharded_module.h).

#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "crosshatch/fsdp/custom_comm.h"
#include "crosshatch/fsdp/policy.h"
#include "crosshatch/nn/module.h"

namespace crosshatch::fsdp {

struct Settings {
  /// \name Parameters
  /// @{
  /// See FullyShardOptions::reshard_after_forward.
  std::optional<bool> reshard_after_forward = {};
  /// False: parameters stay unsharded after backward, for the next microbatch.
  /// Set it to true before the last microbatch: forward checks that shards have
  /// not been changed beneath unsharded parameters.
  bool reshard_after_backward = true;
  /// False: the module's backward needs no parameters (an embedding's). Neither
  /// backward nor prefetching unshards them for it.
  bool unshard_in_backward = true;
  /// True: the memory of unsharded parameters is kept, at the same addresses,
  /// while they are sharded. Their values are not.
  bool keep_unsharded = false;
  /// @}

  /// \name Gradients
  /// @{
  /// False: backward communicates no gradients and keeps them unsharded, in the
  /// reduce dtype. The next backward that reduces takes all.
  bool requires_gradient_sync = true;
  /// False, for HSDP: gradients are summed over the sharding ranks only and add
  /// up there. The next backward that sums over the replicas takes all. No
  /// effect without replicas.
  bool requires_all_reduce = true;
  /// True: parameters without a gradient take part in reductions with zeros and
  /// get the gradient that other ranks give. For models of which a rank uses
  /// only a part in a step. The module's groups are unsharded when the
  /// outermost forward of the tree begins, in the order of the modules, stay
  /// unsharded to the end of backward, and are reduced there in that order:
  /// what a rank communicates does not depend on what it uses. All ranks run
  /// the same outermost forwards and backwards.
  bool reduce_unused_params = false;
  /// `buffers` is of the whole tree: the root's value counts.
  ReductionOptions reduction = {};
  /// Null: the built-in collectives.
  std::shared_ptr<const CustomComm> custom_comm = nullptr;
  /// @}

  /// \name Prefetching
  /// @{
  /// Sharded modules to unshard when this one's forward (backward) begins, in
  /// this order, instead of what `prefetch` says. Empty for none. Modules may
  /// be destroyed later.
  std::optional<std::vector<nn::Module*>> forward_prefetch_modules = {};
  std::optional<std::vector<nn::Module*>> backward_prefetch_modules = {};
  /// @}

  /// \name Of the whole tree: the root's values count
  /// @{
  PrefetchOptions prefetch = {};
  /// False for all backwards of an iteration but the last: at their end compute
  /// does not wait for reductions, and they prefetch for the backwards of
  /// forwards before theirs. Gradients must not be read meanwhile.
  bool is_last_backward = true;
  /// True: backwards reduce nothing by themselves. Gradients add up unsharded
  /// until ShardedModule::FinalizeBackward.
  bool manual_finalization = false;
  /// @}
};

/// Checks the values of options that may be changed later.
/// \param what the caller, to begin the message with: "FullyShard".
/// \error kInvalidArgument naming the option.
absl::Status CheckOptions(const char* what, const PrefetchOptions& prefetch,
                          const ReductionOptions& reduction);

}  // namespace crosshatch::fsdp

#endif  // CROSSHATCH_FSDP_SETTINGS_H_
