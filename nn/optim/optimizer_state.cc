// SPDX-License-Identifier: Apache-2.0

// Optimizers as states.

#include <map>
#include <string>
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

// Of the slots, in their order.
std::vector<std::string> Optimizer::EntryNames(
    const std::string& parameter) const {
  std::vector<std::string> names;
  for (const std::string& slot : slots_) {
    names.push_back(absl::StrCat(parameter, ".", slot));
  }
  return names;
}

absl::Status Optimizer::AddTo(StateDict& dict, size_t i) const {
  CH_RETURN_IF_ERROR(CheckNamed(*parameters_[i]));
  const std::string& parameter = parameters_[i]->name();
  const std::vector<std::string> names = EntryNames(parameter);
  for (size_t slot = 0; slot < names.size(); ++slot) {
    CH_RETURN_IF_ERROR(dict.Add(names[slot], states_[i].tensors[slot]));
  }
  return dict.Add(StepName(parameter), states_[i].step);
}

absl::StatusOr<StateDict> Optimizer::State() {
  StateDict state;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (states_[i].step == 0) continue;
    CH_RETURN_IF_ERROR(AddTo(state, i));
  }
  return state;
}

absl::StatusOr<StateDict> Optimizer::StateToFill(
    const std::vector<std::string>& saved) {
  std::map<std::string, size_t> by_entry;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    CH_RETURN_IF_ERROR(CheckNamed(*parameters_[i]));
    const std::string& parameter = parameters_[i]->name();
    std::vector<std::string> names = EntryNames(parameter);
    names.push_back(StepName(parameter));
    for (const std::string& name : names) {
      if (by_entry.emplace(name, i).second) continue;
      return absl::AlreadyExistsError(absl::StrCat(
          name_, ": two parameters are called \"", parameter, "\""));
    }
  }
  // What is due is all of each parameter that anything was kept of.
  std::vector<bool> is_kept(parameters_.size());
  for (const std::string& name : saved) {
    const auto found = by_entry.find(name);
    if (found != by_entry.end()) is_kept[found->second] = true;
  }
  std::vector<std::string> own;
  for (const auto& [name, i] : by_entry) {
    if (is_kept[i]) own.push_back(name);
  }
  CH_RETURN_IF_ERROR(
      MatchStateNames(absl::StrCat("this ", name_), own, saved,
                      {.allow_unexpected = restore_options_.allow_unexpected})
          .status());
  MakeStates([&](size_t i) { return is_kept[i]; });
  StateDict state;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (is_kept[i]) CH_RETURN_IF_ERROR(AddTo(state, i));
  }
  return state;
}

absl::Status Optimizer::Restore(const StateDict& state) {
  std::vector<int64_t> steps(parameters_.size());
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const std::string& parameter = parameters_[i]->name();
    const std::string step = StepName(parameter);
    if (state.Find(step) == nullptr) continue;
    const std::vector<std::string> names = EntryNames(parameter);
    for (size_t slot = 0; slot < names.size(); ++slot) {
      CH_RETURN_IF_ERROR(
          CheckFilled(state, names[slot], states_[i].tensors[slot]));
    }
    CH_ASSIGN_OR_RETURN(steps[i], state.Get<int64_t>(step));
    if (steps[i] < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat(name_, ": \"", step, "\" is ", steps[i],
                       "; of a parameter that was updated it is at least 1"));
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
