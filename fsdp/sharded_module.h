// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_FSDP_SHARDED_MODULE_H_
#define CROSSHATCH_FSDP_SHARDED_MODULE_H_

/// \file
/// Configure and ShardedModule: run-time control of a sharded module:
/// accumulate gradients with or without communication, unshard and reshard
/// explicitly, select modules to prefetch, abandon an iteration.
///
///     for (int i = 0; i < n; ++i) {                 // n microbatches
///       CH_RETURN_IF_ERROR(ch::fsdp::Configure(
///           model, [&](ch::fsdp::Settings& settings) {
///             settings.requires_gradient_sync = i == n - 1;
///           }));
///       CH_RETURN_IF_ERROR(ch::Backward(LossOf(model, batches[i])));
///     }

#include <memory>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "crosshatch/fsdp/settings.h"
#include "crosshatch/nn/module.h"
#include "crosshatch/tensor/stream.h"

namespace crosshatch::fsdp {

class FsdpState;
class FsdpTree;
struct FsdpStateRef;

/// An all-gather that was issued by ShardedModule::Unshard.
class UnshardHandle {
 public:
  /// Makes compute wait for the gather; afterwards compute may use the
  /// unsharded parameters. Has no effect if forward has waited already or if
  /// the parameters were freed, also by the destruction of the module.
  void Wait();

 private:
  friend class ShardedModule;
  explicit UnshardHandle(std::shared_ptr<const FsdpStateRef> ref)
      : ref_(std::move(ref)) {}
  std::shared_ptr<const FsdpStateRef> ref_;
};

/// Reductions that were issued by ShardedModule::FinalizeBackward.
class ReductionHandle {
 public:
  /// Makes compute wait for the reductions; afterwards the optimizer may run.
  void Wait();

 private:
  friend class ShardedModule;
  explicit ReductionHandle(std::shared_ptr<FsdpTree> tree)
      : tree_(std::move(tree)) {}
  std::shared_ptr<FsdpTree> tree_;
};

/// Changes the settings of a sharded module and, if `recurse` is set, of all
/// sharded modules below it. Settings hold until the next change. All ranks
/// that shard the module must make the same changes in the same order.
/// \param change called once per module with its settings.
/// \error kNotFound if the module is not sharded.
/// \error kInvalidArgument if a value is out of range, a module to prefetch is
///     not sharded, or a tree-wide setting is changed on a module other than
///     the tree's root. A module without a tree becomes the root of one.
/// \error On any error no setting has changed.
absl::Status Configure(nn::Module& module,
                       absl::FunctionRef<void(Settings&)> change,
                       bool recurse = true);

/// A handle to a sharded module, cheap to copy. Use after the module's
/// destruction fails a check that names the module. All ranks that shard the
/// module must make the same calls in the same order.
class ShardedModule {
 public:
  /// Returns a handle to `module`.
  /// \error kNotFound if FullyShard was not called on the module.
  static absl::StatusOr<ShardedModule> Of(nn::Module& module);

  /// \name Explicit gathers
  /// @{

  /// Issues the gather of this module's groups, after the work issued to
  /// compute so far, unless it has been issued. The parameters stay gathered
  /// until Reshard, the end of the module's forward (if its policy reshards
  /// then) or the end of its backward.
  UnshardHandle Unshard();
  /// Frees the unsharded parameters of this module's groups.
  void Reshard();
  /// @}

  /// \name The iteration. Call these on the root: they concern the whole tree.
  /// @{

  /// Issues the reductions of all pending gradients.
  ReductionHandle FinalizeBackward();
  /// Makes the next gathers wait for `event`, usually that of the optimizer's
  /// step, instead of for all work issued to compute.
  void SetPostOptimizerEvent(Event event);
  /// Abandons an iteration at any point. Afterwards parameters are sharded, no
  /// gradient is pending and prefetching starts anew. Complete gradients of the
  /// parameters and all settings stay.
  /// \pre not called within a Backward; checked.
  void ResetIteration();
  /// @}

  /// Runs `body` as the module's forward: gathers before it, frees after it and
  /// observes the outputs for backward. For entry points other than
  /// Module::Call.
  TensorList Run(TensorList inputs,
                 absl::FunctionRef<TensorList(TensorSpan)> body);

 private:
  explicit ShardedModule(std::shared_ptr<const FsdpStateRef> ref)
      : ref_(std::move(ref)) {}
  FsdpState& state() const;

  std::shared_ptr<const FsdpStateRef> ref_;
};

/// Makes each of `roots` the root of a tree; the trees share streams and the
/// memory of gradients in flight. For parts of one model that are called one by
/// one, such as pipeline stages.
/// \error kInvalidArgument for a module that is not sharded.
absl::Status ShareCommContext(absl::Span<nn::Module* const> roots);

}  // namespace crosshatch::fsdp

#endif  // CROSSHATCH_FSDP_SHARDED_MODULE_H_
