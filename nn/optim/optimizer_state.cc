// SPDX-License-Identifier: Apache-2.0

// The implementation of StateHolder for optimizers.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/nn/optim/optimizer.h"

namespace crosshatch::nn {
namespace {

std::string StepName(const std::string& parameter) {
  return absl::StrCat(parameter, ".step");
}

}  // namespace

absl::Status Optimizer::CheckNamed(const Parameter& parameter) const {
  if (!parameter.name().empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      name_, ": the state goes by the names of parameters, and ",
      parameter.data().Describe(), " has none; call Module::NamedParameters"));
}

std::vector<std::string> Optimizer::EntryNames(
    const std::string& parameter) const {
  std::vector<std::string> names;
  for (const std::string& slot : slots_) {
    names.push_back(absl::StrCat(parameter, ".", slot));
  }
  return names;
}

absl::Status Optimizer::AddTo(StateDict& dict, size_t i, bool has_slots) const {
  CH_RETURN_IF_ERROR(CheckNamed(*parameters_[i]));
  const std::string& parameter = parameters_[i]->name();
  const std::vector<std::string> names = EntryNames(parameter);
  for (size_t slot = 0; has_slots && slot < names.size(); ++slot) {
    CH_RETURN_IF_ERROR(dict.Add(names[slot], states_[i].tensors[slot]));
  }
  return dict.Add(StepName(parameter), states_[i].step);
}

absl::StatusOr<StateDict> Optimizer::State() {
  StateDict state;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    CH_RETURN_IF_ERROR(AddTo(state, i, /*has_slots=*/states_[i].step > 0));
  }
  return state;
}

absl::StatusOr<StateDict> Optimizer::StateToFill(
    const std::vector<std::string>& saved) {
  struct Entry {
    size_t parameter;
    bool is_step;
  };
  std::map<std::string, Entry> by_name;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    CH_RETURN_IF_ERROR(CheckNamed(*parameters_[i]));
    const std::string& parameter = parameters_[i]->name();
    std::vector<std::string> names = EntryNames(parameter);
    names.push_back(StepName(parameter));
    for (size_t slot = 0; slot < names.size(); ++slot) {
      const Entry entry = {i, slot + 1 == names.size()};
      if (by_name.emplace(names[slot], entry).second) continue;
      return absl::AlreadyExistsError(absl::StrCat(
          name_, ": two parameters are called \"", parameter, "\""));
    }
  }
  std::vector<bool> is_kept(parameters_.size());
  std::vector<bool> has_slots(parameters_.size());
  for (const std::string& name : saved) {
    const auto found = by_name.find(name);
    if (found == by_name.end()) continue;
    const auto [i, is_step] = found->second;
    is_kept[i] = true;
    has_slots[i] = has_slots[i] || !is_step;
  }
  // Each parameter needs its step and, if it has any slot, all of them. An
  // optional parameter is missing as a whole.
  std::vector<std::string> own;
  std::vector<std::string> left_out;
  for (const auto& [name, entry] : by_name) {
    const auto [i, is_step] = entry;
    if (!is_kept[i] && restore_options_.allow_missing) {
      if (is_step) left_out.push_back(name);
    } else if (is_step || has_slots[i]) {
      own.push_back(name);
    }
  }
  RestoreOptions options = restore_options_;
  options.allow_missing = false;
  const absl::Status matched =
      MatchStateNames(absl::StrCat("this ", name_), own, saved, options)
          .status();
  // Report the differences even if they are allowed.
  if (options.differences != nullptr) {
    std::vector<std::string>& missing = options.differences->missing;
    missing.insert(missing.end(), left_out.begin(), left_out.end());
    std::sort(missing.begin(), missing.end());
  }
  CH_RETURN_IF_ERROR(matched);
  MakeStates([&](size_t i) { return has_slots[i]; });
  StateDict state;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (is_kept[i]) CH_RETURN_IF_ERROR(AddTo(state, i, has_slots[i]));
  }
  return state;
}

absl::Status Optimizer::CheckFilledSlots(const StateDict& state, size_t i,
                                         int64_t step) const {
  const std::string& parameter = parameters_[i]->name();
  const std::vector<std::string> names = EntryNames(parameter);
  size_t filled = 0;
  for (size_t slot = 0; slot < names.size(); ++slot) {
    if (state.Find(names[slot]) == nullptr) continue;
    ++filled;
    if (slot < states_[i].tensors.size()) {
      CH_RETURN_IF_ERROR(
          CheckFilled(state, names[slot], states_[i].tensors[slot]));
    }
  }
  if (step >= 0 && (names.empty() || (step > 0) == (filled > 0)) &&
      (filled == 0 || filled == states_[i].tensors.size())) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      name_, ": \"", StepName(parameter), "\" is ", step, ", and ", filled,
      " of ", names.size(), " other entries of \"", parameter,
      "\" were kept; it is at least 1, with all of them, of a parameter that "
      "was updated, and 0, with none, of one that never was"));
}

absl::Status Optimizer::Restore(const StateDict& state) {
  std::vector<int64_t> steps(parameters_.size());
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const std::string step = StepName(parameters_[i]->name());
    if (state.Find(step) == nullptr) continue;
    CH_ASSIGN_OR_RETURN(steps[i], state.Get<int64_t>(step));
    CH_RETURN_IF_ERROR(CheckFilledSlots(state, i, steps[i]));
    if (steps[i] > std::numeric_limits<int64_t>::max() / 2) {
      return absl::InvalidArgumentError(absl::StrCat(
          name_, ": \"", step, "\" is ", steps[i], ", which is out of range"));
    }
  }
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (steps[i] == 0) {
      states_[i] = {};
      locals_[i].clear();
      continue;
    }
    states_[i].step = steps[i];
    for (const Tensor& local : locals_[i]) BeginWrite(name_, local);
  }
  return absl::OkStatus();
}

}  // namespace crosshatch::nn
