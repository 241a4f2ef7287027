// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_FSDP_FSDP_STATE_H_
#define CROSSHATCH_FSDP_FSDP_STATE_H_

/// \file
/// FsdpState: one sharded module: its groups, its settings and where it is in
/// an iteration. FsdpTree (fsdp_tree.h) drives it; PyTorch's counterpart is
/// FSDPState.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "crosshatch/fsdp/comm_context.h"
#include "crosshatch/fsdp/param_group.h"
#include "crosshatch/fsdp/policy.h"
#include "crosshatch/fsdp/settings.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/module.h"
#include "crosshatch/nn/state_guard.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch::fsdp {

class FsdpState;
class FsdpTree;

/// A weak reference to the state of a sharded module, which is destroyed with
/// the module.
struct FsdpLife {
  FsdpState* state;  ///< Null when it is gone.
  std::string name;

  /// The state. Fails a check that names `what` and the module if it is gone.
  FsdpState& Check(const char* what) const;
};

/// Why a module's parameters were unsharded before the module needed them.
enum class Prefetched : uint8_t { kNo, kForForward, kForBackward };

/// Where a sharded module is in an iteration.
struct ModuleIteration {
  /// Forwards of the module that are running, within each other.
  int forwards = 0;
  /// The module's forward runs; of a list of modules, some have run and the
  /// last has not.
  bool in_forward = false;
  /// A backward has come to the module, and has not ended.
  bool in_backward = false;
  /// In that backward, some gradients of the module are still missing.
  bool computes_backward = false;
  Prefetched prefetched = Prefetched::kNo;
  /// SummonFullParameters holds the parameters: the module must not run.
  bool summoned = false;
};

/// One forward of a module with frozen groups whose inputs need gradients.
struct WatchedForward {
  int inputs = 0;      ///< Nodes that made the inputs.
  int inputs_due = 0;  ///< In backward: nodes without their gradients yet.
};

class FsdpState final : public nn::StateGuard {
 public:
  static constexpr char kKey[] = "fsdp";

  /// The state of a sharded module; null for others.
  static FsdpState* Of(const nn::Module& module);
  /// Whether it is under Replicate: then it is no part of a tree above, nor is
  /// what is below it.
  static bool IsReplicated(const nn::Module& module);
  /// `module` and all below it, but for replicated modules other than itself
  /// and what is below one. In the order of Module::NamedModules.
  static std::vector<nn::NamedModule> ModulesOf(nn::Module& module);
  /// The states of these for each of `modules`, each once.
  static std::vector<FsdpState*> Below(absl::Span<nn::Module* const> modules);
  /// Gives what Below gives, and the states of replicated modules and of all
  /// below them.
  static std::vector<FsdpState*> AllBelow(
      absl::Span<nn::Module* const> modules);
  /// All in the tree of modules that `module` is of.
  static std::vector<FsdpState*> AllAround(nn::Module& module);

  /// What FullyShard left out of the groups, to be told of.
  struct LeftOut {
    /// Tied with parameters of modules above: a group there must take them.
    std::vector<nn::Parameter*> tied;
    std::vector<std::shared_ptr<const nn::Parameter>> ignored;
  };

  /// \param modules one, or several that are gathered before the first of them
  ///     runs and freed after the last in the list has run.
  /// \param mesh over which the batch is split
  /// \param replicated whether Replicate made it
  FsdpState(std::vector<nn::Module*> modules, DeviceMesh mesh,
            FullyShardOptions options,
            std::vector<std::unique_ptr<ParamGroup>> groups, LeftOut left_out,
            bool replicated);
  ~FsdpState() override;
  FsdpState(const FsdpState&) = delete;
  FsdpState& operator=(const FsdpState&) = delete;

  std::shared_ptr<const FsdpLife> life() const { return life_; }
  const std::vector<nn::Module*>& modules() const { return modules_; }
  /// The first module's, for messages and traces.
  std::string Name() const;
  const FullyShardOptions& options() const { return options_; }
  const DeviceMesh& mesh() const { return mesh_; }
  bool splits_batch() const override { return mesh_.size() > 1; }
  const std::vector<std::unique_ptr<ParamGroup>>& groups() const {
    return groups_;
  }

  const LeftOut& left_out() const { return left_out_; }
  bool replicated() const { return replicated_; }

  /// The tree that the module is in. Null before the first forward, and after
  /// the root of the tree was destroyed.
  FsdpTree* tree() const { return tree_.get(); }
  /// \param batch_mesh over which the root's batch is split.
  void Join(std::shared_ptr<FsdpTree> tree, std::shared_ptr<CommContext> comm,
            const DeviceMesh& batch_mesh);
  void Leave() { tree_ = nullptr; }

  const Settings& settings() const { return settings_; }
  /// Returns the settings without modules to prefetch that were destroyed.
  Settings SettingsOfLiving() const;
  /// Replaces the settings, which have been checked.
  void set_settings(Settings settings);
  void set_requires_gradient_sync(bool on) {
    settings_.requires_gradient_sync = on;
  }
  /// Whether ranks may differ in using the module. Then gathers and reductions
  /// keep to one order: none depends on what ran.
  bool reduce_unused() const { return settings_.reduce_unused_params; }
  /// Weak references to the modules that the settings list; unset if there is
  /// no list.
  using Lives = std::vector<std::shared_ptr<const FsdpLife>>;
  const std::optional<Lives>& forward_prefetch() const {
    return forward_prefetch_;
  }
  const std::optional<Lives>& backward_prefetch() const {
    return backward_prefetch_;
  }

  ModuleIteration& iteration() { return iteration_; }
  bool reshard_after_forward(bool as_root) const {
    return settings_.reshard_after_forward.value_or(!as_root);
  }

  /// Issues the all-gathers of all groups.
  void Unshard();
  /// Makes compute wait for them.
  void WaitForUnshard();
  void Reshard();
  void ReshardAfterForward();
  /// Unshards for a forward or backward that may not come.
  void Prefetch(Prefetched reason);
  /// The outermost forward has ended and no backward follows: frees what was
  /// unsharded for forwards that did not come.
  void AfterOutermostForward();
  /// Bytes of unsharded parameters that Unshard would issue an all-gather for,
  /// and of those whose all-gather compute has not waited for.
  int64_t BytesToUnshard() const;
  int64_t BytesUnsharding() const;

  /// \name Whether shards are all there is
  /// `what` begins the messages, which name the module or group.
  /// @{
  /// Unsharded parameters do not differ from them, and no gradient is on its
  /// way to the optimizer.
  absl::Status CheckReadable(const char* what) const override;
  /// And none are gathered.
  absl::Status CheckWritable(const char* what) const override;
  /// @}
  /// Also of a part of the module.
  void BeginRecomputation(nn::Module& module) override;

  /// Casts the inputs of a forward as MixedPrecisionPolicy says.
  void CastInputs(TensorList& inputs) const;
  /// And the outputs of one whose policy has an output_dtype.
  void CastOutputs(TensorList& outputs) const;
  /// Watches for the gradients of the inputs of a forward that begins. Frozen
  /// parameters have no gradient to wait for: they are freed when those are
  /// there.
  void WatchInputs(const TensorList& inputs);
  /// \returns the watched forward that ends; null if nothing is watched.
  std::shared_ptr<WatchedForward> TakeWatchedForward() {
    return std::exchange(forward_, nullptr);
  }

  /// \name Backward
  /// @{
  /// The gradients of an output of `forward` are there.
  void BeginBackward(const std::shared_ptr<WatchedForward>& forward);
  /// Begins and ends the span of the module's backward in the trace.
  void BeginBackwardSpan();
  void EndBackwardSpan();
  /// Frees what is left if no gradient is left to wait for: groups that have
  /// none, too.
  void CheckBackwardComplete();
  /// Reduces, frees and forgets what is left of the backward.
  /// \param tree the root's settings.
  void AfterBackward(const Settings& tree);
  /// Leaves the iteration, wherever it is.
  void Reset();
  /// @}

  /// Whether a group has reduced in this backward, or these.
  bool took_part() const;
  /// GroupGradients::EndReductions of all groups.
  void EndReductions(bool reports);
  /// Makes compute wait for the reductions.
  void Finish();

  /// The groups, and what was left out of them.
  std::string Describe(bool as_root, PlanDetail detail) const;

 private:
  absl::Status CheckAtRest(const char* what, bool unsharded_too) const;
  void InputGradientsComplete(const std::shared_ptr<WatchedForward>& forward);
  /// Whether gradients for modules below may still pass through frozen
  /// parameters of this one.
  bool PassesGradients() const;
  std::string ZeroStage(bool as_root) const;

  const std::vector<nn::Module*> modules_;
  const DeviceMesh mesh_;
  const FullyShardOptions options_;
  std::vector<std::unique_ptr<ParamGroup>> groups_;
  const LeftOut left_out_;
  const bool replicated_;
  std::shared_ptr<FsdpLife> life_;
  std::shared_ptr<FsdpTree> tree_;
  std::shared_ptr<CommContext> comm_;  ///< Null before the first forward.

  Settings settings_;
  std::optional<Lives> forward_prefetch_;
  std::optional<Lives> backward_prefetch_;
  ModuleIteration iteration_;
  std::shared_ptr<WatchedForward> forward_;  ///< The one that is running.
  /// Those whose backward has begun and whose inputs' gradients are due.
  std::vector<std::shared_ptr<WatchedForward>> forwards_in_backward_;
};

}  // namespace crosshatch::fsdp

#endif  // CROSSHATCH_FSDP_FSDP_STATE_H_
