// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_OPTIM_OPTIMIZER_H_
#define CROSSHATCH_NN_OPTIM_OPTIMIZER_H_

/// \file
/// Base of optimizers of local shards: state, groups, and runs of adjacent
/// parameters. An optimizer adds its options and its arithmetic, which do not
/// depend on a mesh.

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

/// The state of one parameter.
struct OptimizerState {
  /// Updates so far.
  int64_t step = 0;
  /// float32, in the layout of Parameter::data(), in the order of
  /// Optimizer::slots(). Empty before the first update.
  absl::InlinedVector<Tensor, 2> tensors = {};
};

/// Updates parameters by their gradients. Arithmetic is in float32: parameters
/// of other floating-point dtypes are updated in a temporary copy, allocated as
/// optimizer state, and rounded to their dtype once.
///
/// State is allocated (MemoryClass::kOptimizerState) in the first step in which
/// a parameter has a gradient. Parameters that are adjacent in memory, with
/// adjacent gradients and equal options, are updated as one run.
///
/// The entries of its state (Stateful) are "<parameter>.step" for each
/// parameter, 0 if it was never updated, and otherwise "<parameter>.<slot>" for
/// each slot. Names are the parameters' full names, so the state can be
/// restored with another order of them and other groups. A parameter without
/// entries is an error, unless RestoreOptions::allow_missing is set. Options
/// are not part of the state.
///
/// \threadsafety the rank's thread only.
class Optimizer : public Stateful {
 public:
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// Returns e.g. "AdamW", for messages.
  const char* name() const { return name_; }

  /// Updates every parameter that has a gradient, on the current stream,
  /// without waiting for it.
  /// \error the rank's first error, if a collective failed; kInvalidArgument
  ///     naming an invalid option, or a group without parameters;
  ///     kFailedPrecondition if no parameter has a gradient, or if one has a
  ///     gradient that was not reduced (CheckGradients). Then nothing is
  ///     updated.
  absl::Status Step();

  /// Drops the gradients.
  void ZeroGrad();

  /// Sets the learning rate from the next Step on; groups scale it.
  virtual void set_lr(double lr) = 0;

  const std::vector<Parameter*>& parameters() const { return parameters_; }
  /// Returns the names of the state's tensors: "exp_avg".
  const std::vector<std::string>& slots() const { return slots_; }
  /// Returns the state of parameters()[i].
  /// \checks i < parameters().size()
  const OptimizerState& StateOf(size_t i) const;
  /// Replaces the state of the parameter of that name by a copy of `state`,
  /// whose tensors are like those of StateOf.
  /// \error kNotFound naming the parameter; kInvalidArgument for a step below 1
  ///     or beyond all runs, and for tensors of other numbers, dtypes, sizes or
  ///     layouts. Then nothing is replaced.
  absl::Status SetState(const std::string& parameter_name,
                        const OptimizerState& state);

  /// \name Stateful
  /// @{
  absl::StatusOr<StateDict> State() override;
  /// \error kInvalidArgument also for a parameter with some of its entries.
  absl::StatusOr<StateDict> StateToFill(
      const std::vector<std::string>& saved) override;
  absl::Status Restore(const StateDict& state) override;
  /// @}

 protected:
  using Has = std::function<bool(const Parameter&)>;

  /// Adjacent elements that are updated at once. All tensors are float32 of one
  /// dim and the same size, contiguous, and written in place.
  struct Run {
    size_t group;  ///< The number of groups for parameters without a group.
    int64_t step;  ///< From 1.
    size_t first;  ///< The index of its first parameter.
    Tensor values;
    Tensor grads;  ///< Must not be written.
    absl::InlinedVector<Tensor, 2> slots;
  };

  /// \param name a literal.
  /// \param slots names of the state's tensors, initially zero.
  /// \param parameters each once, named, materialized before the first Step.
  ///     Ownership of modules' parameters is shared, so a model may be
  ///     destroyed before the optimizer; other parameters must outlive it.
  ///     Parameters that require no gradient are not updated. If there are
  ///     none, a Step does nothing, and is an error in a job of one rank.
  /// \param groups a parameter belongs to the first one that matches it, or to
  ///     none; evaluated in the first Step or StateToFill, when all have names.
  /// \param restore_options allow_unexpected: entries of other parameters are
  ///     not read; allow_missing: a parameter without entries was never
  ///     updated.
  Optimizer(const char* name, std::vector<std::string> slots,
            std::vector<Parameter*> parameters, std::vector<Has> groups,
            const RestoreOptions& restore_options);

  /// Computes the options of a step.
  /// \error kInvalidArgument naming an invalid option.
  virtual absl::Status PrepareOptions() = 0;
  /// Returns whether two groups have equal options, so that their runs can
  /// join.
  virtual bool HaveEqualOptions(size_t group, size_t other) const = 0;
  /// Returns whether Update issues its kernels by LaunchEachStep, so that a
  /// captured step can be replayed.
  virtual bool can_be_captured() const { return false; }
  /// Computes the update of a run, in NoGrad.
  /// \pre PrepareOptions
  virtual void Update(const Run& run) = 0;

  /// Assigns parameters to groups, the first time.
  absl::Status FindGroups();
  /// \pre FindGroups
  /// \checks i < parameters().size()
  size_t GroupOf(size_t i) const;
  /// Returns the index of the parameter of that name; -1 if there is none.
  int64_t Find(const std::string& parameter_name) const;
  /// Returns OK if 0 <= value < end.
  /// \param whose "group 1's ", or empty.
  absl::Status CheckOption(const std::string& whose, const char* option,
                           double value, double end) const;

 private:
  /// This rank's shard of each of a state's tensors.
  using Locals = absl::InlinedVector<Tensor, 2>;

  /// Allocates state for the parameters that `wants` accepts and that have
  /// none.
  void MakeStates(absl::FunctionRef<bool(size_t)> wants);
  absl::Status CheckNamed(const Parameter& parameter) const;
  std::vector<std::string> EntryNames(const std::string& parameter) const;
  absl::Status AddTo(StateDict& dict, size_t i, bool has_slots) const;
  /// Checks that the slots of parameters_[i] in `state` are those that
  /// StateToFill returned, and match `step`.
  absl::Status CheckFilledSlots(const StateDict& state, size_t i,
                                int64_t step) const;

  const char* const name_;
  const std::vector<std::string> slots_;
  const std::vector<Parameter*> parameters_;
  const std::vector<std::shared_ptr<Parameter>> owners_;
  const std::vector<Has> groups_;
  const RestoreOptions restore_options_;
  /// By parameter; groups_.size() for parameters without a group. Empty before
  /// FindGroups.
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

  /// Returns the options of parameters()[i] in the next Step, with its group's
  /// lr_scale in lr.
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

  /// Returns `options` with those of the group in their place, except lr_scale.
  virtual Options WithGroup(Options options, const Group& group) const = 0;
  /// \error kInvalidArgument naming an invalid option.
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
  /// The options of the step; those without a group last.
  std::vector<Options> by_group_;
};

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_OPTIM_OPTIMIZER_H_
