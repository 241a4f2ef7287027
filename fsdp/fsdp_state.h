// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_FSDP_FSDP_STATE_H_
#define CROSSHATCH_FSDP_FSDP_STATE_H_

/// \file
/// FsdpState: the state of one sharded module: its groups, its settings and its
/// position in an iteration. FsdpTree (fsdp_tree.h) drives it. PyTorch's
/// counterpart is FSDPState.

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
#include "crosshatch/tensor/tensor.h"

namespace crosshatch::fsdp {

class FsdpState;
class FsdpTree;

/// A weak reference to the state of a sharded module, which is destroyed with
/// the module.
struct FsdpStateRef {
  FsdpState* state;  ///< Null if it is destroyed.
  std::string name;

  /// Returns the state. If it is destroyed, fails a check that names `what` and
  /// the module.
  FsdpState& Check(const char* what) const;
};

/// Why a module's parameters were unsharded before the module ran.
enum class Prefetched : uint8_t { kNo, kForForward, kForBackward };

/// The position of a sharded module in an iteration.
struct ModuleIteration {
  /// Number of nested forwards of the module that are running.
  int forwards = 0;
  /// Whether the module's forward is running. For a list of modules: whether
  /// some have run and the last has not.
  bool in_forward = false;
  /// Whether a backward has reached the module and has not ended.
  bool in_backward = false;
  /// Whether that backward still lacks gradients of the module.
  bool computes_backward = false;
  Prefetched prefetched = Prefetched::kNo;
  /// Whether SummonFullParameters holds the parameters; then the module must
  /// not run.
  bool summoned = false;
};

/// A forward of a module with frozen groups whose inputs need gradients.
/// Its backward ends when the inputs have their gradients.
struct ObservedForward {
  int inputs = 0;          ///< Number of nodes that produced the inputs.
  int inputs_awaited = 0;  ///< In backward: nodes that lack gradients.
};

class FsdpState final : public nn::StateGuard {
 public:
  static constexpr char kKey[] = "fsdp";

  /// Returns the state of a sharded module; null for others.
  static FsdpState* Of(const nn::Module& module);
  /// Returns whether Replicate made the module's state. Such a module and all
  /// below it belong to no tree of an ancestor.
  static bool IsReplicated(const nn::Module& module);
  /// Returns `module` and all modules below it, in the order of
  /// Module::NamedModules. Omits replicated modules other than `module`, and
  /// everything below a replicated module.
  static std::vector<nn::NamedModule> ModulesOf(nn::Module& module);
  /// Returns the states of ModulesOf for each of `modules`, each once.
  static std::vector<FsdpState*> Below(absl::Span<nn::Module* const> modules);
  /// Returns the states below `modules`, including replicated modules and all
  /// below them.
  static std::vector<FsdpState*> AllBelow(
      absl::Span<nn::Module* const> modules);
  /// Returns all states in the whole module tree that contains `module`.
  static std::vector<FsdpState*> AllInModuleTree(nn::Module& module);

  /// Parameters that FullyShard kept out of the groups, for DescribePlan.
  struct OmittedParameters {
    /// Tied with parameters outside: a group of an ancestor must have them.
    std::vector<nn::Parameter*> tied;
    std::vector<std::shared_ptr<const nn::Parameter>> ignored;
  };

  /// \param modules one module, or several that are gathered before the first
  ///     runs and freed after the last of the list has run.
  /// \param mesh the mesh that the batch is split over.
  /// \param replicated whether Replicate created the state.
  FsdpState(std::vector<nn::Module*> modules, DeviceMesh mesh,
            FullyShardOptions options,
            std::vector<std::unique_ptr<ParamGroup>> groups,
            OmittedParameters omitted, bool replicated);
  ~FsdpState() override;
  FsdpState(const FsdpState&) = delete;
  FsdpState& operator=(const FsdpState&) = delete;

  std::shared_ptr<const FsdpStateRef> ref() const { return ref_; }
  const std::vector<nn::Module*>& modules() const { return modules_; }
  /// Returns the first module's name, for messages and traces.
  std::string Name() const;
  const FullyShardOptions& options() const { return options_; }
  const DeviceMesh& mesh() const { return mesh_; }
  bool splits_batch() const override { return mesh_.size() > 1; }
  const std::vector<std::unique_ptr<ParamGroup>>& groups() const {
    return groups_;
  }

  const OmittedParameters& omitted() const { return omitted_; }
  bool replicated() const { return replicated_; }

  /// Returns the tree of the module; null before the first forward and after
  /// the tree's root was destroyed.
  FsdpTree* tree() const { return tree_.get(); }
  /// Makes the state a member of `tree`.
  /// \param batch_mesh over which the root's batch is split.
  void Join(std::shared_ptr<FsdpTree> tree, std::shared_ptr<CommContext> comm,
            const DeviceMesh& batch_mesh);
  void Leave() { tree_ = nullptr; }

  const Settings& settings() const { return settings_; }
  /// Returns the settings without the modules to prefetch that were destroyed.
  Settings LiveSettings() const;
  /// Replaces the settings.
  /// \pre they have been checked.
  void set_settings(Settings settings);
  void set_requires_gradient_sync(bool on) {
    settings_.requires_gradient_sync = on;
  }
  /// Whether ranks may differ in using the module. If so, the order of gathers
  /// and reductions does not depend on which modules ran.
  bool reduce_unused() const { return settings_.reduce_unused_params; }
  /// Weak references to the modules to prefetch; unset if the settings have no
  /// list.
  using Refs = std::vector<std::shared_ptr<const FsdpStateRef>>;
  const std::optional<Refs>& forward_prefetch() const {
    return forward_prefetch_;
  }
  const std::optional<Refs>& backward_prefetch() const {
    return backward_prefetch_;
  }

  ModuleIteration& iteration() { return iteration_; }
  bool reshard_after_forward(bool as_root) const {
    return settings_.reshard_after_forward.value_or(!as_root);
  }

  /// Issues the all-gathers of all groups.
  void Unshard();
  /// Makes compute wait for the all-gathers.
  void WaitForUnshard();
  void Reshard();
  void ReshardAfterForward();
  /// Unshards for a forward or backward that may not follow.
  void Prefetch(Prefetched reason);
  /// Frees parameters that were unsharded for forwards that did not follow.
  /// Called when the outermost forward has ended and no backward follows.
  void AfterOutermostForward();
  /// Return the unsharded size in bytes of the groups that Unshard would
  /// gather, and of those whose all-gather compute has not waited for.
  int64_t BytesToUnshard() const;
  int64_t BytesUnsharding() const;

  /// \name StateGuard
  /// `what` begins the messages, which name the module or group.
  /// @{
  /// Checks that unsharded parameters equal the shards and that no gradient
  /// awaits reduction.
  absl::Status CheckReadable(const char* what) const override;
  /// Checks also that no parameters are gathered.
  absl::Status CheckWritable(const char* what) const override;
  /// @}
  /// Unshards the groups that `module`, this module or a part of it, needs.
  void BeginRecomputation(nn::Module& module) override;

  /// Casts the inputs of a forward according to MixedPrecisionPolicy.
  void CastInputs(TensorList& inputs) const;
  /// Casts outputs to output_dtype.
  /// \pre the policy has an output_dtype.
  void CastOutputs(TensorList& outputs) const;
  /// Observes the gradients of the inputs of a forward that begins. Frozen
  /// parameters have no gradient that would end their backward, so they are
  /// freed when the inputs have their gradients.
  void ObserveInputs(const TensorList& inputs);
  /// \returns the observed forward that ends; null if nothing is observed.
  std::shared_ptr<ObservedForward> TakeObservedForward() {
    return std::exchange(forward_, nullptr);
  }

  /// \name Backward
  /// @{
  /// Records that backward has reached an output of `forward`.
  void BeginBackward(const std::shared_ptr<ObservedForward>& forward);
  void BeginBackwardSpan();
  void EndBackwardSpan();
  /// If the module's backward awaits no more gradients, frees the remaining
  /// unsharded groups, including those without gradients.
  void CheckBackwardComplete();
  /// Reduces and frees the remainder of the backward, and clears its state.
  /// \param tree the root's settings.
  void AfterBackward(const Settings& tree);
  /// Abandons the iteration at any point.
  void Reset();
  /// @}

  /// Returns whether a group has reduced gradients since the last
  /// EndReductions.
  bool has_reduced() const;
  /// Calls GroupGradients::EndReductions of all groups.
  void EndReductions(bool reports);
  /// Makes compute wait for the reductions.
  void Finish();

  /// Describes the groups and the omitted parameters.
  std::string Describe(bool as_root, PlanDetail detail) const;

 private:
  absl::Status CheckAtRest(const char* what, bool unsharded_too) const;
  void InputGradientsComplete(const std::shared_ptr<ObservedForward>& forward);
  /// Returns whether gradients for modules below may still pass through frozen
  /// parameters of this one.
  bool PassesGradients() const;
  std::string ZeroStage(bool as_root) const;

  const std::vector<nn::Module*> modules_;
  const DeviceMesh mesh_;
  const FullyShardOptions options_;
  std::vector<std::unique_ptr<ParamGroup>> groups_;
  const OmittedParameters omitted_;
  const bool replicated_;
  std::shared_ptr<FsdpStateRef> ref_;
  std::shared_ptr<FsdpTree> tree_;
  std::shared_ptr<CommContext> comm_;  ///< Null before the first forward.

  Settings settings_;
  std::optional<Refs> forward_prefetch_;
  std::optional<Refs> backward_prefetch_;
  ModuleIteration iteration_;
  std::shared_ptr<ObservedForward> forward_;  ///< The running one.
  /// Forwards whose backward has begun and whose inputs lack gradients.
  std::vector<std::shared_ptr<ObservedForward>> forwards_in_backward_;
};

}  // namespace crosshatch::fsdp

#endif  // CROSSHATCH_FSDP_FSDP_STATE_H_
