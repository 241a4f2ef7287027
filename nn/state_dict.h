// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_STATE_DICT_H_
#define CROSSHATCH_NN_STATE_DICT_H_

/// \file
/// What a run keeps when it stops: names with tensors and small values, and
/// the interface of what has such state.

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

/// One entry of a state. A tensor is shared with what it is the state of, not
/// copied: a DTensor stands for its global tensor, a plain one is the same on
/// every rank. Small values are the same on every rank.
using StateValue = std::variant<Tensor, int64_t, double, std::string>;

/// Names to values, in the order of the names. Names are those of parameters
/// ("layers.0.mlp.up_proj.weight"), of whatever wraps a module free, after the
/// name of the part that they belong to ("model.", "optimizer.").
///
/// \threadsafety as a standard container
class StateDict {
 public:
  using Map = std::map<std::string, StateValue, std::less<>>;

  /// \error kAlreadyExists for a name that is there, kInvalidArgument for an
  ///     empty one.
  absl::Status Add(std::string name, StateValue value);
  /// Adds all of `part` under "<prefix>.".
  absl::Status AddAll(absl::string_view prefix, const StateDict& part);

  /// Null if there is none.
  const StateValue* Find(absl::string_view name) const;
  StateValue* Find(absl::string_view name);
  /// The entries under "<prefix>.", without it.
  StateDict Part(absl::string_view prefix) const;

  /// \error kNotFound naming the entry; kInvalidArgument if it is of another
  ///     type.
  template <typename T>
  absl::StatusOr<T> Get(absl::string_view name) const;

  const Map& entries() const { return entries_; }
  bool empty() const { return entries_.empty(); }
  size_t size() const { return entries_.size(); }

 private:
  Map entries_;
};

/// What a checkpoint can keep: a module, an optimizer, a loss scaler, a
/// schedule, a data position, a value of the user's.
///
/// All ranks call the same, in the same order.
/// \threadsafety the rank's thread only.
class Stateful {
 public:
  virtual ~Stateful() = default;

  /// What to keep. Its tensors share memory with this: they hold still until
  /// the next step.
  /// \error kFailedPrecondition if the state cannot be told now.
  virtual absl::StatusOr<StateDict> State() = 0;

  /// The state as it is to be filled from one that has `saved`, with memory for
  /// every tensor, in the dtype that it is to have: a loader reads into them,
  /// replaces the other values, which stand for their type alone, and then
  /// calls Restore. All its names are among `saved`; a loader reads no others.
  /// \param saved all names of the state that was kept, in order
  /// \error kInvalidArgument listing the names that are missing or unexpected;
  ///     kFailedPrecondition if the state cannot be changed now.
  virtual absl::StatusOr<StateDict> StateToFill(
      const std::vector<std::string>& saved) = 0;

  /// Takes over the values of `state`, whose tensors are those of StateToFill,
  /// filled.
  /// \error naming what is missing or does not fit; then nothing has changed
  ///     but what was filled.
  virtual absl::Status Restore(const StateDict& state) = 0;
};

/// All names, in order, in which what was kept and what is restored differ.
struct StateDifferences {
  std::vector<std::string> missing;     ///< Not in the state that was kept.
  std::vector<std::string> unexpected;  ///< In that one alone.
};

/// How far what was kept and what is restored may differ in names.
struct RestoreOptions {
  /// What is not in the state that was kept stays as it is.
  bool allow_missing = false;
  /// What is not known is not read.
  bool allow_unexpected = false;
  /// Set, if not null, whenever names are compared, to what differs, allowed or
  /// not. Outlives what these are the options of.
  StateDifferences* differences = nullptr;
};

/// Compares the names of a state with those that were kept.
/// \param what whose names they are, for the message: "module Llama".
/// \param own, saved in order
/// \returns those in both, in order.
/// \error kInvalidArgument listing the first of the names that are missing or
///     unexpected and not allowed to be, and their number.
absl::StatusOr<std::vector<std::string>> MatchStateNames(
    const std::string& what, const std::vector<std::string>& own,
    const std::vector<std::string>& saved, const RestoreOptions& options);

/// The tensor `name` of `state`, which must be `filled`: what Restore checks
/// before it takes over what a loader filled.
/// \error as StateDict::Get; kInvalidArgument for another tensor.
absl::Status CheckFilled(const StateDict& state, const std::string& name,
                         const Tensor& filled);

/// The names of `state`, in order.
std::vector<std::string> NamesOf(const StateDict& state);

/// The variables are the same on every rank and outlive this.
class BoundValues final : public Stateful {
 public:
  using Variable = std::variant<int64_t*, double*, std::string*>;

  explicit BoundValues(std::vector<std::pair<std::string, Variable>> variables,
                       const RestoreOptions& options = {})
      : variables_(std::move(variables)), options_(options) {}

  /// \error kAlreadyExists for a name that is there twice.
  absl::StatusOr<StateDict> State() override;
  absl::StatusOr<StateDict> StateToFill(
      const std::vector<std::string>& saved) override;
  absl::Status Restore(const StateDict& state) override;

 private:
  const std::vector<std::pair<std::string, Variable>> variables_;
  const RestoreOptions options_;
};

/// Entries are "<part>.<entry>". A part whose name is not among those that were
/// kept is asked all the same, with no names: whether that is an error it knows
/// best.
class CombinedState final : public Stateful {
 public:
  using Parts = std::vector<std::pair<std::string, Stateful*>>;

  /// \param parts outlive this. Names are different, not empty and without
  ///     dots (checked).
  /// \param options allow_unexpected: parts that were kept and are unknown here
  ///     are not read. allow_missing: parts of which nothing was kept stay as
  ///     they are. differences: the names of those parts; what differs within a
  ///     part is for that part's options.
  explicit CombinedState(Parts parts, const RestoreOptions& options = {});

  absl::StatusOr<StateDict> State() override;
  /// \error what the parts say, all of it in one.
  absl::StatusOr<StateDict> StateToFill(
      const std::vector<std::string>& saved) override;
  /// In the order of the parts. A part's error ends it: those before it are
  /// restored then, and the run is not to go on.
  absl::Status Restore(const StateDict& state) override;

 private:
  const Parts parts_;
  const RestoreOptions options_;
};

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_STATE_DICT_H_
