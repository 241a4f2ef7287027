// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_FSDP_SHARDED_MODULE_H_
#define CROSSHATCH_FSDP_SHARDED_MODULE_H_

/// \file
/// ShardedModule: what a program may ask of a module after FullyShard: to
/// gather and free by hand, to accumulate gradients with or without
/// communication, to choose what is prefetched, to leave an iteration.
///
///     CH_ASSIGN_OR_RETURN(auto sharded, ch::fsdp::ShardedModule::Of(model));
///     for (int i = 0; i < n; ++i) {                 // n microbatches
///       sharded.SetRequiresGradientSync(i == n - 1);
///       CH_RETURN_IF_ERROR(ch::Backward(LossOf(model, batches[i])));
///     }

#include <memory>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "crosshatch/fsdp/custom_comm.h"
#include "crosshatch/nn/module.h"
#include "crosshatch/tensor/stream.h"

namespace crosshatch::fsdp {

class FsdpState;
class FsdpTree;
struct FsdpLife;

/// A gather that has been issued.
class UnshardHandle {
 public:
  /// Makes compute wait for it: then the gathered parameters may be used.
  /// Again, after forward waited by itself, or after they were freed, by the
  /// module's end too: no effect.
  void Wait();

 private:
  friend class ShardedModule;
  explicit UnshardHandle(std::shared_ptr<const FsdpLife> life)
      : life_(std::move(life)) {}
  std::shared_ptr<const FsdpLife> life_;
};

/// Reductions that have been issued.
class ReductionHandle {
 public:
  /// Makes compute wait for them: then the optimizer may run.
  void Wait();

 private:
  friend class ShardedModule;
  explicit ReductionHandle(std::shared_ptr<FsdpTree> tree)
      : tree_(std::move(tree)) {}
  std::shared_ptr<FsdpTree> tree_;
};

/// A handle, cheap to copy; used after the module is gone it stops, naming the
/// module. All ranks that
/// shard the module call the same in the same order. Settings hold until they
/// are changed; `recurse` gives them to all sharded modules below too.
class ShardedModule {
 public:
  /// \error kNotFound for a module that FullyShard was not called on.
  static absl::StatusOr<ShardedModule> Of(nn::Module& module);

  /// \name Gathering by hand
  /// @{

  /// Issues the gather of this module's groups, after what compute has issued;
  /// nothing to do where it has been issued. The parameters stay gathered until
  /// Reshard, the end of the module's forward (by its policy) or of its
  /// backward.
  UnshardHandle Unshard();
  /// Frees the gathered parameters of this module's groups.
  void Reshard();
  /// On: the memory of gathered parameters is kept, at the same addresses,
  /// while they are sharded. Their values are not.
  void SetKeepUnsharded(bool on, bool recurse = true);
  /// Sets what FullyShardOptions::reshard_after_forward has set first.
  void SetReshardAfterForward(bool on, bool recurse = true);
  /// Off: parameters stay gathered after backward, for the next microbatch.
  /// On again before the last one: forward checks that shards have not been
  /// changed beneath gathered parameters.
  void SetReshardAfterBackward(bool on, bool recurse = true);
  /// Off: this module's backward needs no parameters (an embedding's): neither
  /// it nor prefetching gathers them for it.
  void SetUnshardInBackward(bool on);
  /// @}

  /// \name Reducing
  /// @{

  /// Off: backward communicates no gradients and keeps them unsharded, in the
  /// reduce dtype; the next backward that reduces takes all.
  void SetRequiresGradientSync(bool on, bool recurse = true);
  /// Off, for HSDP: gradients are summed over the sharding ranks only and add
  /// up there; the next backward that sums over the replicas takes all. No
  /// effect without replicas.
  void SetRequiresAllReduce(bool on, bool recurse = true);
  /// On: parameters without a gradient take part in reductions with zeros and
  /// get the gradient that other ranks give. For models of which a rank uses
  /// only a part in a step, and calls no other. These groups are gathered when
  /// the outermost forward of the tree begins, all of them, in the order of the
  /// modules, stay gathered to the end of backward, and are reduced there in
  /// that order: what a rank communicates does not depend on what it uses. All
  /// ranks run the same outermost forwards and backwards.
  void SetReduceUnusedParams(bool on, bool recurse = true);
  /// They set what the options of these names have set first.
  void SetGradientDivideFactor(double factor, bool recurse = true);
  void SetForceSumReduction(bool on, bool recurse = true);
  /// See custom_comm.h.
  void SetCustomComm(const CustomComm& custom, bool recurse = true);
  /// @}

  /// \name The iteration. These concern the whole tree: call them on its root.
  /// @{

  /// Off for all backwards of an iteration but the last: at their end compute
  /// does not wait for reductions, and they gather ahead for the backwards of
  /// forwards before theirs. With it off the gradients must not be read.
  void SetIsLastBackward(bool on);
  /// On: backwards reduce nothing by themselves; gradients add up unsharded
  /// until FinalizeBackward.
  void SetManualBackwardFinalization(bool on);
  /// Issues the reductions of everything that is pending.
  ReductionHandle FinalizeBackward();
  /// The next gathers wait for `event` instead of for all that compute has
  /// issued: the optimizer's step, where other work follows it.
  void SetPostOptimizerEvent(Event event);
  /// Leaves an iteration wherever it is: afterwards parameters are sharded, no
  /// gradient is pending and prefetching begins anew, as if it had never
  /// started. Parameters' gradients that are complete and all settings stay.
  /// Not within a Backward.
  void ResetIteration();
  /// @}

  /// \name Prefetching
  /// The modules to gather when this one's forward (backward) begins, in that
  /// order, instead of what the options say. Empty for none.
  /// \error kInvalidArgument for a module that is not sharded.
  /// @{
  absl::Status SetForwardPrefetch(std::vector<nn::Module*> modules);
  absl::Status SetBackwardPrefetch(std::vector<nn::Module*> modules);
  /// @}

  /// Runs `body` as the module's forward: gathers before, frees after, watches
  /// the outputs for backward. For entry points other than Module::Call.
  TensorList Run(TensorList inputs,
                 absl::FunctionRef<TensorList(TensorSpan)> body);

 private:
  explicit ShardedModule(std::shared_ptr<const FsdpLife> life)
      : life_(std::move(life)) {}
  FsdpState& state() const;
  template <typename F>
  void ForEach(bool recurse, F set);

  std::shared_ptr<const FsdpLife> life_;
};

/// Makes each of `roots` the root of a tree, all of which share streams and the
/// memory of gradients in flight: parts of one model that are called one by
/// one, as pipeline stages are.
/// \error kInvalidArgument for a module that is not sharded.
absl::Status ShareCommContext(absl::Span<nn::Module* const> roots);

}  // namespace crosshatch::fsdp

#endif  // CROSSHATCH_FSDP_SHARDED_MODULE_H_
