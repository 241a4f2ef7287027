// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_FSDP_FSDP_STATE_H_
#define CROSSHATCH_FSDP_FSDP_STATE_H_

/// \file
/// FsdpState: a sharded module: its groups, what may be asked of them, where
/// the module is in an iteration, and what waits for its gradients. It does
/// what its tree (fsdp_tree.h) says and tells it what autograd does, and knows
/// no tree:
///
///   before forward    gather, prefetch the next modules', wait
///   after forward     free (by policy); watch the outputs' gradients
///   before backward   gather, prefetch the previous modules', wait
///   gradients there   reduce, free
///   end of backward   whatever of this is left; compute waits for reductions
///
/// Frozen parameters have no gradient to wait for: they are freed when those of
/// the module's inputs are there.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "crosshatch/fsdp/comm_context.h"
#include "crosshatch/fsdp/iteration.h"
#include "crosshatch/fsdp/module_events.h"
#include "crosshatch/fsdp/param_group.h"
#include "crosshatch/fsdp/policy.h"
#include "crosshatch/fsdp/settings.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/module.h"
#include "crosshatch/nn/state_guard.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch::fsdp {

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

  /// \name Who hears of it
  /// @{
  /// Null before the first forward, and after the root of its tree went.
  const std::shared_ptr<ModuleEvents>& events() const { return events_; }
  /// \param batch_mesh over which the root's batch is split.
  void Join(std::shared_ptr<ModuleEvents> events,
            std::shared_ptr<CommContext> comm, const DeviceMesh& batch_mesh);
  void Leave() { events_ = nullptr; }
  /// @}

  Settings& settings() { return settings_; }
  const Settings& settings() const { return settings_; }
  /// Whether ranks may differ in using it:
  /// ShardedModule::SetReduceUnusedParams.
  bool reduce_unused() const { return settings_.reduce_unused; }

  /// \name The iteration
  /// @{
  /// Where it is.
  const ModuleIteration& iteration() const { return iteration_; }
  /// What it says itself of the facts that decide.
  /// \param as_root whether it is the root of its tree.
  ModuleFacts Facts(bool as_root) const;
  /// Makes the transition that `event` is for. \returns what is to be done.
  ModuleTransition Advance(ModuleEvent event, const ModuleFacts& facts);
  /// Does what is for a module to do.
  /// \param group the one that the event is of, where it is of one; else null.
  /// \param inputs of the forward that begins; null at other events.
  void Do(ModuleAction action, ParamGroup* group, const TensorList* inputs);
  /// @}

  /// Issues the gathers of all groups.
  void Unshard();
  /// Makes compute wait for them.
  void WaitForUnshard();
  void Reshard();
  /// Takes up what Parameter::set_requires_grad was told since.
  void FollowTrainability();
  /// Of gathered parameters that Unshard would issue a gather for, or has
  /// issued one for that compute has not waited for.
  int64_t BytesToGather() const;
  int64_t BytesGathering() const;

  /// SummonFullParameters takes the parameters, and has given them back.
  void BeginSummon() { Advance(ModuleEvent::kSummonBegins, {}); }
  void EndSummon() { Advance(ModuleEvent::kSummonEnds, {}); }

  /// \name Whether shards are all there is
  /// `what` begins the messages, which name the module or group.
  /// @{
  /// Gathered parameters do not differ from them, and no gradient is on its way
  /// to the optimizer.
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
  /// Watches for the gradients of a forward's outputs.
  /// \returns whether any of them has one.
  bool WatchOutputs(const TensorList& outputs);
  /// Whether gradients on their way to modules below may yet pass through
  /// frozen parameters of this one.
  bool PassesGradients() const;
  /// The backward is over, or the iteration is left.
  void StopWatching();

  /// Whether a group has reduced in this backward, or these.
  bool took_part() const;
  /// GroupGradients::EndReductions of all groups.
  void EndReductions(bool reports);
  /// Makes compute wait for the reductions.
  void Finish();

  /// The groups, and what was left out of them.
  std::string Describe(bool as_root, PlanDetail detail) const;

 private:
  /// One forward of a module with frozen groups whose inputs need gradients.
  struct Run {
    int inputs = 0;      ///< Nodes that made the inputs.
    int inputs_due = 0;  ///< In backward: those without their gradients yet.
  };

  absl::Status CheckAtRest(const char* what, bool gathered_too) const;
  void Tell(ModuleEvent event, ParamGroup* group = nullptr);

  void WatchInputs(const TensorList& inputs);
  void OutputGradientsReady(const std::shared_ptr<Run>& run);
  void InputGradientsReady(const std::shared_ptr<Run>& run);
  /// Tells when no gradient is left to wait for, so that nothing computes with
  /// groups that have none, either.
  void CheckComplete();
  bool reshard_after_forward(bool as_root) const;
  std::string ZeroStage(bool as_root) const;

  const std::vector<nn::Module*> modules_;
  const DeviceMesh mesh_;
  const FullyShardOptions options_;
  std::vector<std::unique_ptr<ParamGroup>> groups_;
  const LeftOut left_out_;
  const bool replicated_;
  std::shared_ptr<FsdpLife> life_;
  std::shared_ptr<ModuleEvents> events_;
  std::shared_ptr<CommContext> comm_;  ///< Null before the first forward.

  Settings settings_;
  ModuleIteration iteration_;
  std::shared_ptr<Run> run_;  ///< Of the forward that is running.
  /// Runs whose backward has begun and whose inputs' gradients are due.
  std::vector<std::shared_ptr<Run>> open_runs_;
};

}  // namespace crosshatch::fsdp

#endif  // CROSSHATCH_FSDP_FSDP_STATE_H_
