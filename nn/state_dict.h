// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_STATE_DICT_H_
#define CROSSHATCH_NN_STATE_DICT_H_

/// \file
/// The state of a run: names with tensors and small values, the interface of
/// objects with such state, and the states of variables and of a whole run.
///
///     int64_t step = 0;
///     ch::nn::ModuleState parameters(model);
///     ch::nn::BoundValues position({{"step", &step}});
///     ch::nn::CombinedState run({{"model", &parameters},
///                                {"optimizer", &optimizer},
///                                {"position", &position}});

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch::nn {

/// The value of an entry. A tensor is shared with its owner, not copied: a
/// DTensor stands for its global tensor, a plain one is the same on every rank.
/// Small values are the same on every rank.
using StateValue = std::variant<Tensor, int64_t, double, std::string>;

/// Values by name, in the order of the names. Names are those of parameters
/// ("layers.0.mlp.up_proj.weight"), independent of wrappers of a module, after
/// the name of their part ("model.", "optimizer.").
///
/// \threadsafety as a standard container.
class StateDict {
 public:
  using Map = std::map<std::string, StateValue, std::less<>>;

  /// Adds an entry.
  /// \error kAlreadyExists for a name that exists, kInvalidArgument for an
  ///     empty one.
  absl::Status Add(std::string name, StateValue value);
  /// Adds all of `part` under "<prefix>.".
  absl::Status AddAll(absl::string_view prefix, const StateDict& part);

  /// Returns the entry's value; null if there is none.
  const StateValue* Find(absl::string_view name) const;
  StateValue* Find(absl::string_view name);
  /// Returns the entries under "<prefix>.", without the prefix.
  StateDict Part(absl::string_view prefix) const;

  /// Returns the entry's value.
  /// \error kNotFound naming the entry; kInvalidArgument if it has another
  /// type.
  template <typename T>
  absl::StatusOr<T> Get(absl::string_view name) const;

  const Map& entries() const { return entries_; }
  bool empty() const { return entries_.empty(); }
  size_t size() const { return entries_.size(); }

 private:
  Map entries_;
};

/// An object that a checkpoint can save and restore: a module, an optimizer, a
/// loss scaler, a data position, a variable of the program.
///
/// All ranks make the same calls in the same order.
/// \threadsafety the rank's thread only.
class Stateful {
 public:
  virtual ~Stateful() = default;

  /// Returns the state. Its tensors share memory with this object and do not
  /// change until the next step.
  /// \error kFailedPrecondition if the state is not available now.
  virtual absl::StatusOr<StateDict> State() = 0;

  /// Returns a state with memory for every tensor, in its final dtype. A loader
  /// reads into the tensors, replaces the other values, of which only the type
  /// matters, and then calls Restore. It reads only the returned names, which
  /// are all in `saved`.
  /// \param saved all names of the saved state, in order.
  /// \error kInvalidArgument listing the names that are missing or unexpected;
  ///     kFailedPrecondition if the state cannot be changed now.
  virtual absl::StatusOr<StateDict> StateToFill(
      const std::vector<std::string>& saved) = 0;

  /// Restores the values of `state`, whose tensors are the filled ones of
  /// StateToFill.
  /// \error naming an entry that is missing or does not fit; then only the
  ///     filled tensors have changed.
  virtual absl::Status Restore(const StateDict& state) = 0;
};

/// The names, in order, that only the saved or only the restored state has.
struct StateDifferences {
  std::vector<std::string> missing;     ///< Not in the saved state.
  std::vector<std::string> unexpected;  ///< Only in the saved state.
};

/// The differences of names that a restore allows.
struct RestoreOptions {
  /// Entries that are not in the saved state keep their values.
  bool allow_missing = false;
  /// Unknown entries of the saved state are not read.
  bool allow_unexpected = false;
  /// If not null, receives all differences whenever names are compared, allowed
  /// or not. Outlives the object with these options.
  StateDifferences* differences = nullptr;
};

/// Compares the names of a state with those of the saved one.
/// \param what the owner of the names, for the message: "module Llama".
/// \param own, saved in order.
/// \returns the names in both, in order.
/// \error kInvalidArgument listing the first of the names that are missing or
///     unexpected and not allowed to be, and their number.
absl::StatusOr<std::vector<std::string>> MatchStateNames(
    const std::string& what, const std::vector<std::string>& own,
    const std::vector<std::string>& saved, const RestoreOptions& options);

/// Checks for Restore that the tensor `name` of `state` is `filled`.
/// \error as StateDict::Get; kInvalidArgument for another tensor.
absl::Status CheckFilled(const StateDict& state, const std::string& name,
                         const Tensor& filled);

/// Returns the names of `state`, in order.
std::vector<std::string> NamesOf(const StateDict& state);

/// The state of a program's own variables, such as its step, data position or
/// seed. The variables are the same on every rank and outlive this.
class BoundValues final : public Stateful {
 public:
  using Variable = std::variant<int64_t*, double*, std::string*>;

  explicit BoundValues(std::vector<std::pair<std::string, Variable>> variables,
                       const RestoreOptions& options = {})
      : variables_(std::move(variables)), options_(options) {}

  /// \error kAlreadyExists for a name that occurs twice.
  absl::StatusOr<StateDict> State() override;
  absl::StatusOr<StateDict> StateToFill(
      const std::vector<std::string>& saved) override;
  absl::Status Restore(const StateDict& state) override;

 private:
  const std::vector<std::pair<std::string, Variable>> variables_;
  const RestoreOptions options_;
};

/// The state of a whole run: the states of its parts, with entries
/// "<part>.<entry>". A part without saved entries is restored from none, which
/// may be an error of the part.
class CombinedState final : public Stateful {
 public:
  using Parts = std::vector<std::pair<std::string, Stateful*>>;

  /// \param parts outlive this. Names are different, not empty and without dots
  ///     (checked).
  /// \param options for whole parts: allow_unexpected: unknown saved parts are
  ///     not read. allow_missing: parts without saved entries keep their
  ///     values. differences: receives the names of such parts. For differences
  ///     within a part, use the part's options.
  explicit CombinedState(Parts parts, const RestoreOptions& options = {});

  absl::StatusOr<StateDict> State() override;
  /// \error the errors of all parts, joined.
  absl::StatusOr<StateDict> StateToFill(
      const std::vector<std::string>& saved) override;
  /// Restores the parts in order. It stops at the first error; earlier parts
  /// are restored then, and the run should not continue.
  absl::Status Restore(const StateDict& state) override;

 private:
  const Parts parts_;
  const RestoreOptions options_;
};

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_STATE_DICT_H_
