// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_FSDP_SHARDED_MODULE_H_
#define CROSSHATCH_FSDP_SHARDED_MODULE_H_

/// \file
/// Configure and ShardedModule: what a program may change of a sharded module
/// and do with it: accumulate gradients with or without communication, unshard
/// and reshard by hand, choose what is prefetched, leave an iteration.
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
struct FsdpLife;

/// A gather that has been issued.
class UnshardHandle {
 public:
  /// Makes compute wait for it: then the unsharded parameters may be used.
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

/// Changes settings of a sharded module, and with `recurse` of all sharded
/// modules below it. Settings hold until they are changed again. All ranks that
/// shard the module make the same changes in the same order.
/// \param change called once for each module, with its settings.
/// \error kNotFound for a module that is not sharded; kInvalidArgument for a
///     value that is out of range, a module to prefetch that is not sharded,
///     and a setting of the whole tree that is changed on another module than
///     the tree's root (a module that has not run yet becomes the root). On any
///     error no setting has changed.
absl::Status Configure(nn::Module& module,
                       absl::FunctionRef<void(Settings&)> change,
                       bool recurse = true);

/// A handle, cheap to copy. If it is used after the module was destroyed, it
/// stops, naming the module. All ranks that shard the module call the same in
/// the same order.
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
  /// Frees the unsharded parameters of this module's groups.
  void Reshard();
  /// @}

  /// \name The iteration. These concern the whole tree: call them on its root.
  /// @{

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

  /// Runs `body` as the module's forward: gathers before, frees after, watches
  /// the outputs for backward. For entry points other than Module::Call.
  TensorList Run(TensorList inputs,
                 absl::FunctionRef<TensorList(TensorSpan)> body);

 private:
  explicit ShardedModule(std::shared_ptr<const FsdpLife> life)
      : life_(std::move(life)) {}
  FsdpState& state() const;

  std::shared_ptr<const FsdpLife> life_;
};

/// Makes each of `roots` the root of a tree, all of which share streams and the
/// memory of gradients in flight: parts of one model that are called one by
/// one, as pipeline stages are.
/// \error kInvalidArgument for a module that is not sharded.
absl::Status ShareCommContext(absl::Span<nn::Module* const> roots);

}  // namespace crosshatch::fsdp

#endif  // CROSSHATCH_FSDP_SHARDED_MODULE_H_
