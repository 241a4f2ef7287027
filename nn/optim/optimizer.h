// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_OPTIM_OPTIMIZER_H_
#define CROSSHATCH_NN_OPTIM_OPTIMIZER_H_

/// \file
/// What optimizers of local shards share: state beside parameters, groups, runs
/// of neighbours. An optimizer adds its options and its arithmetic; a mesh
/// enters neither.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "crosshatch/nn/parameter.h"
#include "crosshatch/nn/state_dict.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch::nn {

/// What an optimizer keeps for one parameter.
struct OptimizerState {
  /// Updates so far.
  int64_t step = 0;
  /// float32, of the layout of Parameter::data(), in the order of
  /// Optimizer::slots(). None until there is a first update.
  absl::InlinedVector<Tensor, 2> tensors = {};
};

/// Updates parameters by their gradients. Arithmetic is in float32: parameters
/// of other floating-point dtypes are updated in a copy that is leased as
/// optimizer state for the length of the update, and rounded to their dtype
/// once.
///
/// State is leased (MemoryClass::kOptimizerState) at the first step in which a
/// parameter has a gradient. Parameters that are neighbours in memory, with
/// neighbouring gradients and equal options, are updated as one run.
///
/// As a state (Stateful) it is "<parameter>.step" for each parameter, 0 for one
/// that was never updated, and "<parameter>.<slot>" for each slot of those that
/// were, by the parameters' full names: it may be restored into another order
/// of them and other groups. So a parameter that the state knows nothing of is
/// missing, and not taken for one that was never updated, but where
/// RestoreOptions::allow_missing is set. Options are the program's and no part
/// of the state.
///
/// \threadsafety the rank's thread only.
class Optimizer : public Stateful {
 public:
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// "AdamW", for messages.
  const char* name() const { return name_; }

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

  /// The learning rate from the next Step on; groups scale it.
  virtual void set_lr(double lr) = 0;

  const std::vector<Parameter*>& parameters() const { return parameters_; }
  /// The names of what is kept: "exp_avg".
  const std::vector<std::string>& slots() const { return slots_; }
  /// Of parameters()[i]. \checks that there is one
  const OptimizerState& StateOf(size_t i) const;
  /// Replaces what is kept for the parameter of that name: copies the values of
  /// `state`, tensors like those of StateOf.
  /// \error kNotFound naming the parameter; kInvalidArgument for a step below 1
  ///     or beyond all runs, and for tensors of other numbers, dtypes, sizes or
  ///     layouts. Then nothing is replaced.
  absl::Status SetState(const std::string& parameter_name,
                        const OptimizerState& state);

  /// \name Stateful
  /// @{
  absl::StatusOr<StateDict> State() override;
  /// \error kInvalidArgument also for a parameter of which a part was kept.
  absl::StatusOr<StateDict> StateToFill(
      const std::vector<std::string>& saved) override;
  absl::Status Restore(const StateDict& state) override;
  /// @}

 protected:
  using Has = std::function<bool(const Parameter&)>;

  /// What is updated at once. All tensors are float32, of one dim and of one
  /// size, contiguous, and to be written in place.
  struct Run {
    size_t group;  ///< The number of groups for those of none.
    int64_t step;  ///< From 1.
    Tensor values;
    Tensor grads;  ///< Not to be written.
    absl::InlinedVector<Tensor, 2> slots;
  };

  /// \param name a literal.
  /// \param slots of float32 for each element, zero at first.
  /// \param parameters each once, named, materialized by the first Step. This
  ///     shares the ownership of modules' parameters, so that a model may go
  ///     before; others are alive as long as this is. Those that need no
  ///     gradient are left alone. None: a Step does nothing, and is an error in
  ///     a job of one rank.
  /// \param groups a parameter is of the first one that has it, or of none;
  ///     asked at the first Step or StateToFill, when all have their names.
  /// \param restore_options allow_unexpected: entries of parameters that are
  ///     not here are not read; allow_missing: a parameter without entries is
  ///     one that was never updated.
  Optimizer(const char* name, std::vector<std::string> slots,
            std::vector<Parameter*> parameters, std::vector<Has> groups,
            const RestoreOptions& restore_options);

  /// Works out the options of a step.
  /// \error kInvalidArgument naming an option that makes no update.
  virtual absl::Status PrepareOptions() = 0;
  /// Whether two groups have the same, so that their runs join.
  virtual bool HaveEqualOptions(size_t group, size_t other) const = 0;
  /// The arithmetic, in NoGrad. \pre PrepareOptions
  virtual void Update(const Run& run) = 0;

  /// Says which group each parameter is of, the first time.
  absl::Status FindGroups();
  /// \pre FindGroups; \checks that there is a parameters()[i]
  size_t GroupOf(size_t i) const;
  /// The index of the parameter of that name; -1 if there is none.
  int64_t Find(const std::string& parameter_name) const;
  /// OK if 0 <= value < end. \param whose "group 1's ", or nothing
  absl::Status CheckOption(const std::string& whose, const char* option,
                           double value, double end) const;

 private:
  /// Its part of this rank of each of a state's tensors.
  using Locals = absl::InlinedVector<Tensor, 2>;

  /// State for the parameters that `wants` and that have none yet.
  void MakeStates(absl::FunctionRef<bool(size_t)> wants);
  absl::Status CheckNamed(const Parameter& parameter) const;
  std::vector<std::string> EntryNames(const std::string& parameter) const;
  absl::Status AddTo(StateDict& dict, size_t i, bool has_slots) const;
  /// Whether the slots of parameters_[i] that `state` has are those that
  /// StateToFill gave, and go with `step`.
  absl::Status CheckFilledSlots(const StateDict& state, size_t i,
                                int64_t step) const;

  const char* const name_;
  const std::vector<std::string> slots_;
  const std::vector<Parameter*> parameters_;
  const std::vector<std::shared_ptr<Parameter>> owners_;
  const std::vector<Has> groups_;
  const RestoreOptions restore_options_;
  /// By parameter; groups_.size() for those of none. Empty until they are
  /// found.
  std::vector<size_t> group_of_;
  std::vector<OptimizerState> states_;
  std::vector<Locals> locals_;
};

/// The options of an optimizer and of its groups. `Options` has lr and is
/// compared by ==; `Group` has `has` and `lr_scale`.
template <typename Options, typename Group>
class GroupedOptimizer : public Optimizer {
 public:
  const Options& options() const { return options_; }
  void set_lr(double lr) final { options_.lr = lr; }

  /// What the next Step updates parameters()[i] by, its group's lr_scale in lr.
  /// \error as Step.
  absl::StatusOr<Options> OptionsOf(size_t i) {
    absl::Status status = PrepareOptions();
    if (status.ok()) status = FindGroups();
    if (!status.ok()) return status;
    return by_group_[GroupOf(i)];
  }

 protected:
  GroupedOptimizer(const char* name, std::vector<std::string> slots,
                   std::vector<Parameter*> parameters, const Options& options,
                   std::vector<Group> groups,
                   const RestoreOptions& restore_options)
      : Optimizer(name, std::move(slots), std::move(parameters), HasOf(groups),
                  restore_options),
        options_(options),
        groups_(std::move(groups)) {}

  /// `options` with what the group has in place of them, but for lr_scale.
  virtual Options WithGroup(Options options, const Group& group) const = 0;
  /// \error kInvalidArgument naming an option that makes no update.
  virtual absl::Status CheckOptions(const Options& options,
                                    const std::string& whose) const = 0;

  const Options& OptionsOfGroup(size_t group) const { return by_group_[group]; }

 private:
  static std::vector<Has> HasOf(const std::vector<Group>& groups) {
    std::vector<Has> has;
    for (const Group& group : groups) has.push_back(group.has);
    return has;
  }

  absl::Status PrepareOptions() final {
    by_group_.clear();
    absl::Status status = CheckOptions(options_, "");
    for (size_t i = 0; i < groups_.size() && status.ok(); ++i) {
      by_group_.push_back(WithGroup(options_, groups_[i]));
      by_group_.back().lr *= groups_[i].lr_scale;
      status =
          CheckOptions(by_group_.back(), "group " + std::to_string(i) + "'s ");
    }
    by_group_.push_back(options_);
    return status;
  }
  bool HaveEqualOptions(size_t group, size_t other) const final {
    return by_group_[group] == by_group_[other];
  }

  Options options_;
  const std::vector<Group> groups_;
  /// Of the step; that of no group last.
  std::vector<Options> by_group_;
};

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_OPTIM_OPTIMIZER_H_
