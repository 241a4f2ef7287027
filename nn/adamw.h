// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_ADAMW_H_
#define CROSSHATCH_NN_ADAMW_H_

/// \file
/// AdamW on local shards: the update is elementwise, so no mesh enters it.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "crosshatch/nn/parameter.h"
#include "crosshatch/nn/state_dict.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch::nn {

/// The defaults are those of torch.optim.AdamW.
struct AdamWOptions {
  double lr = 1e-3;    ///< Finite, at least 0.
  double beta1 = 0.9;  ///< In [0, 1), as beta2.
  double beta2 = 0.999;
  double eps = 1e-8;  ///< Finite, at least 0, as weight_decay.
  double weight_decay = 0.01;

  friend bool operator==(const AdamWOptions&, const AdamWOptions&) = default;
};

/// Options that some parameters have for themselves.
struct AdamWGroup {
  /// Which they are: NameMatches("**.bias") (name_pattern.h), or what a program
  /// asks of a parameter.
  std::function<bool(const Parameter&)> has;
  /// Multiplies AdamWOptions::lr, whatever that is set to.
  double lr_scale = 1;
  /// In place of those of AdamWOptions, where given.
  std::optional<double> beta1 = std::nullopt;
  std::optional<double> beta2 = std::nullopt;
  std::optional<double> eps = std::nullopt;
  std::optional<double> weight_decay = std::nullopt;
};

/// The group of what AdamW's decay is left off by custom: parameters of fewer
/// than two dims (norms, biases).
AdamWGroup NoDecayOfVectors();

/// What AdamW keeps for one parameter.
struct AdamWState {
  /// Updates so far.
  int64_t step = 0;
  /// Running means of the gradient and of its square: float32, of the layout of
  /// Parameter::data(). Undefined until there is a first update.
  Tensor exp_avg;
  Tensor exp_avg_sq;
};

/// The update of torch.optim.AdamW, computed in float32; on float32 parameters
/// the two agree within 5e-6 of the largest magnitude in training, not in bits,
/// as they round in other places. Parameters of other floating-point dtypes are
/// updated in float32, from a copy that is leased as optimizer state for the
/// length of the update, and rounded to their dtype once.
///
/// State is leased (MemoryClass::kOptimizerState) at the first step in which a
/// parameter has a gradient. Parameters that are neighbours in memory, with
/// neighbouring gradients and equal options, are updated by one kernel call.
///
/// As a state (Stateful) it is "<parameter>.exp_avg", "<parameter>.exp_avg_sq"
/// and "<parameter>.step" for each parameter that was updated, by the
/// parameters' full names: it may be restored into another order of them and
/// other groups. Restored, a parameter of which nothing was kept is one that
/// was never updated. Options are the program's and no part of the state.
///
/// \threadsafety the rank's thread only.
class AdamW final : public Stateful {
 public:
  /// \param parameters named, materialized by the first Step, and alive as long
  ///     as this is. Those that need no gradient are left alone.
  /// \param groups a parameter is of the first one that has it, or of none;
  ///     asked at the first Step or StateToFill, when all have their names.
  /// \param restore_options allow_unexpected: entries of parameters that are
  ///     not here are not read. allow_missing has no meaning.
  AdamW(std::vector<Parameter*> parameters, const AdamWOptions& options,
        std::vector<AdamWGroup> groups = {},
        const RestoreOptions& restore_options = {});

  /// Updates every parameter that has a gradient, in the order of the current
  /// stream; does not wait for it.
  /// \error the rank's first error, if a collective failed; kInvalidArgument
  ///     naming an option that makes no update, or a group that has none of the
  ///     parameters; kFailedPrecondition where no parameter has a gradient, or
  ///     one has a gradient that was not reduced (gradient_check.h). Then
  ///     nothing is updated.
  absl::Status Step();

  /// Drops the gradients.
  void ZeroGrad();

  const AdamWOptions& options() const { return options_; }
  /// From the next Step on.
  void set_lr(double lr) { options_.lr = lr; }

  const std::vector<Parameter*>& parameters() const { return parameters_; }
  /// Of parameters()[i].
  const AdamWState& state(size_t i) const { return states_[i]; }
  /// The same by name; null if there is no parameter of that name.
  const AdamWState* FindState(const std::string& parameter_name) const;
  /// What the next Step updates parameters()[i] by, its group's lr_scale in lr.
  /// \error as Step.
  absl::StatusOr<AdamWOptions> OptionsOf(size_t i);

  /// \name Stateful
  /// @{
  absl::StatusOr<StateDict> State() override;
  /// \error kInvalidArgument also for a parameter of which a part was kept.
  absl::StatusOr<StateDict> StateToFill(
      const std::vector<std::string>& saved) override;
  absl::Status Restore(const StateDict& state) override;
  /// @}

 private:
  /// State for the parameters that `wants` and that have none yet.
  void MakeStates(absl::FunctionRef<bool(size_t)> wants);
  /// Says which group each parameter is of, the first time.
  absl::Status FindGroups();
  /// By group, those of no group last.
  absl::StatusOr<std::vector<AdamWOptions>> GroupOptions();

  AdamWOptions options_;
  const std::vector<AdamWGroup> groups_;
  const RestoreOptions restore_options_;
  std::vector<Parameter*> parameters_;
  /// By parameter; groups_.size() for those of none. Empty until they are
  /// found.
  std::vector<size_t> group_of_;
  std::vector<AdamWState> states_;
  /// The local parts of the states' tensors.
  std::vector<Tensor> local_exp_avg_;
  std::vector<Tensor> local_exp_avg_sq_;
};

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_ADAMW_H_
