// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_FSDP_FSDP_STATE_H_
#define CROSSHATCH_FSDP_FSDP_STATE_H_

/// \file
/// FsdpState: what makes a sharded module's groups gathered, freed and reduced.
/// It hangs on the module's hooks and on the autograd graph, tells the machine
/// of iteration.h what happens, and does what that says:
///
///   before forward    gather, prefetch the next modules', wait
///   after forward     free (by policy); watch the outputs' gradients
///   before backward   gather, prefetch the previous modules', wait
///   gradients there   reduce, free
///   end of backward   whatever of this is left; compute waits for reductions
///
/// Frozen parameters have no gradient to wait for: they are freed when those of
/// the module's inputs are there.
///
/// The first sharded module that runs makes itself and all below it one tree
/// (FsdpTree), with itself as the root.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "crosshatch/fsdp/comm_context.h"
#include "crosshatch/fsdp/fsdp_tree.h"
#include "crosshatch/fsdp/iteration.h"
#include "crosshatch/fsdp/param_group.h"
#include "crosshatch/fsdp/policy.h"
#include "crosshatch/fsdp/settings.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/module.h"
#include "crosshatch/nn/state_guard.h"

namespace crosshatch::fsdp {

class FsdpState;

/// Whether a sharded module is still there: what outlives it holds this
/// instead of the state, which goes with the module.
struct FsdpLife {
  FsdpState* state;  ///< Null when it is gone.
  std::string name;

  /// The state. Fails a check that names `what` and the module if it is gone.
  FsdpState& Check(const char* what) const;
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

  /// What FullyShard left out of the groups, to be told of.
  struct LeftOut {
    /// Tied with parameters of modules above: a group there must take them.
    std::vector<nn::Parameter*> tied;
    std::vector<std::shared_ptr<const nn::Parameter>> ignored;
  };

  /// \param modules one, or several that are gathered before the first of them
  ///     runs and freed after the last in the list has run.
  /// \param mesh over which the batch is split
  FsdpState(std::vector<nn::Module*> modules, DeviceMesh mesh,
            FullyShardOptions options,
            std::vector<std::unique_ptr<ParamGroup>> groups, LeftOut left_out);
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

  /// \name The tree
  /// @{
  /// Null before the first forward.
  const std::shared_ptr<FsdpTree>& tree() const { return tree_; }
  /// Forms one with this module as its root if there is none.
  FsdpTree& EnsureTree();
  /// Forms or joins another with the next use.
  void LeaveTree() { tree_ = nullptr; }
  void JoinTree(std::shared_ptr<FsdpTree> tree, bool is_root,
                const std::shared_ptr<CommContext>& comm);
  const LeftOut& left_out() const { return left_out_; }
  /// @}

  /// \name Settings
  /// @{
  ModuleSettings& settings() { return settings_; }
  const ModuleSettings& settings() const { return settings_; }
  /// Whether ranks may differ in using it:
  /// ShardedModule::SetReduceUnusedParams.
  bool reduce_unused() const {
    return settings_.reduce_unused && !groups_.empty();
  }
  using Lives = std::vector<std::shared_ptr<const FsdpLife>>;
  void set_forward_prefetch(Lives lives) { forward_prefetch_ = lives; }
  void set_backward_prefetch(Lives lives) { backward_prefetch_ = lives; }
  const std::optional<Lives>& forward_prefetch() const {
    return forward_prefetch_;
  }
  const std::optional<Lives>& backward_prefetch() const {
    return backward_prefetch_;
  }
  /// @}

  /// Where it is in the iteration.
  const ModuleIteration& iteration() const { return iteration_; }

  /// Issues the gathers of all groups.
  void Unshard();
  /// As Unshard, for a forward or backward that may not come.
  void UnshardAhead(Ahead ahead);
  /// Makes compute wait for them.
  void WaitForUnshard();
  void Reshard() { Take(ModuleEvent::kReshardIsAskedFor); }
  /// Takes up what Parameter::set_requires_grad was told since.
  void FollowTrainability();
  /// Of gathered parameters that Unshard would issue a gather for, or has
  /// issued one for that compute has not waited for.
  int64_t BytesToGather() const;
  int64_t BytesGathering() const;

  /// After Replicate.
  void set_replicated() { replicated_ = true; }
  bool replicated() const { return replicated_; }
  /// SummonFullParameters has the parameters: the module must not run.
  void set_summoned(bool summoned) { summoned_ = summoned; }
  bool summoned() const { return summoned_; }

  /// \name Whether shards are all there is
  /// `what` begins the messages, which name the module or group.
  /// @{
  /// Gathered parameters do not differ from them, and no gradient is on its way
  /// to the optimizer.
  absl::Status CheckReadable(const char* what) const override;
  /// And none are gathered.
  absl::Status CheckWritable(const char* what) const override;
  /// @}

  /// What happens around a forward; also for entry points other than Call,
  /// which may call forward within.
  void PreForward(TensorList& inputs);
  /// \param frees whether the parameters' use in forward ends with it.
  void PostForward(TensorList& outputs, bool frees = true);
  /// \name What the tree tells of itself
  /// @{
  /// Its outermost forward has ended, and no backward comes of it.
  void LeaveForward() { Take(ModuleEvent::kOutermostForwardEnds); }
  void EndBackward();
  void Finalize();
  /// Whether a group has reduced in this backward, or these.
  bool took_part() const;
  /// GroupGradients::EndReductions of all groups.
  void EndReductions(bool reports);
  /// Makes compute wait for the reductions.
  void Finish();
  /// Leaves the iteration: sharded, with no gradient pending.
  void Reset();
  /// @}

  /// The groups, and what was left out of them.
  std::string Describe(bool as_root, PlanDetail detail) const;

 private:
  /// One forward of a module with frozen groups whose inputs need gradients.
  struct Run {
    int inputs = 0;      ///< Nodes that made the inputs.
    int inputs_due = 0;  ///< In backward: those without their gradients yet.
  };

  absl::Status CheckAtRest(const char* what, bool gathered_too) const;
  ModuleFacts Facts() const;
  /// Makes the transition that `event` is for and does what it says.
  /// \param group the one that the event is of, where it is of one.
  void Take(ModuleEvent event, const ModuleFacts& facts,
            ParamGroup* group = nullptr, TensorList* inputs = nullptr);
  void Take(ModuleEvent event, ParamGroup* group = nullptr) {
    Take(event, Facts(), group);
  }
  void Do(ModuleAction action, bool backward_follows, ParamGroup* group,
          TensorList* inputs);

  void WatchInputs(const TensorList& inputs);
  /// \returns whether any of them has a gradient.
  bool WatchOutputs(const TensorList& outputs);
  void PreBackward(const std::shared_ptr<Run>& run);
  void GroupIsComplete(ParamGroup& group);
  void InputGradientsReady(const std::shared_ptr<Run>& run);
  /// Tells the machine when no gradient is left to wait for, so that nothing
  /// computes with groups that have none, either.
  void CheckComplete();
  /// Whether gradients on their way to modules below may yet pass through
  /// frozen parameters of this one.
  bool PassesGradients() const;
  bool reshard_after_forward(bool as_root) const;
  std::string ZeroStage(bool as_root) const;

  const std::vector<nn::Module*> modules_;
  const DeviceMesh mesh_;
  const FullyShardOptions options_;
  std::vector<std::unique_ptr<ParamGroup>> groups_;
  const LeftOut left_out_;
  std::shared_ptr<FsdpLife> life_;
  std::shared_ptr<FsdpTree> tree_;
  bool is_root_ = false;
  bool replicated_ = false;
  bool summoned_ = false;

  ModuleSettings settings_;
  std::optional<Lives> forward_prefetch_;
  std::optional<Lives> backward_prefetch_;

  ModuleIteration iteration_;
  std::shared_ptr<Run> run_;  ///< Of the forward that is running.
  /// Runs whose backward has begun and whose inputs' gradients are due.
  std::vector<std::shared_ptr<Run>> open_runs_;
};

}  // namespace crosshatch::fsdp

#endif  // CROSSHATCH_FSDP_FSDP_STATE_H_
