// SPDX-License-Identifier: Apache-2.0

// AdamW as a state.

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/nn/adamw.h"

namespace crosshatch::nn {
namespace {

/// The names of what is kept of one parameter.
struct EntryNames {
  explicit EntryNames(const std::string& parameter)
      : exp_avg(absl::StrCat(parameter, ".exp_avg")),
        exp_avg_sq(absl::StrCat(parameter, ".exp_avg_sq")),
        step(absl::StrCat(parameter, ".step")) {}

  const std::string exp_avg;
  const std::string exp_avg_sq;
  const std::string step;
};

absl::Status CheckNamed(const Parameter& parameter) {
  if (!parameter.name().empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "AdamW: the state goes by the names of parameters, and ",
      parameter.data().Describe(), " has none; call Module::NamedParameters"));
}

}  // namespace

absl::StatusOr<StateDict> AdamW::State() {
  StateDict state;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (states_[i].step == 0) continue;
    CH_RETURN_IF_ERROR(CheckNamed(*parameters_[i]));
    const EntryNames names(parameters_[i]->name());
    CH_RETURN_IF_ERROR(state.Add(names.exp_avg, states_[i].exp_avg));
    CH_RETURN_IF_ERROR(state.Add(names.exp_avg_sq, states_[i].exp_avg_sq));
    CH_RETURN_IF_ERROR(state.Add(names.step, states_[i].step));
  }
  return state;
}

absl::StatusOr<StateDict> AdamW::StateToFill(
    const std::vector<std::string>& saved) {
  std::map<std::string, size_t> by_entry;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    CH_RETURN_IF_ERROR(CheckNamed(*parameters_[i]));
    const EntryNames names(parameters_[i]->name());
    for (const std::string& name :
         {names.exp_avg, names.exp_avg_sq, names.step}) {
      if (by_entry.emplace(name, i).second) continue;
      return absl::AlreadyExistsError(absl::StrCat(
          "AdamW: two parameters are called \"", parameters_[i]->name(), "\""));
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
      MatchStateNames("this AdamW", own, saved,
                      {.allow_unexpected = restore_options_.allow_unexpected})
          .status());
  MakeStates([&](size_t i) { return is_kept[i]; });
  StateDict state;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (!is_kept[i]) continue;
    const EntryNames names(parameters_[i]->name());
    CH_RETURN_IF_ERROR(state.Add(names.exp_avg, states_[i].exp_avg));
    CH_RETURN_IF_ERROR(state.Add(names.exp_avg_sq, states_[i].exp_avg_sq));
    CH_RETURN_IF_ERROR(state.Add(names.step, states_[i].step));
  }
  return state;
}

absl::Status AdamW::Restore(const StateDict& state) {
  std::vector<int64_t> steps(parameters_.size());
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const EntryNames names(parameters_[i]->name());
    if (state.Find(names.step) == nullptr) continue;
    CH_RETURN_IF_ERROR(CheckFilled(state, names.exp_avg, states_[i].exp_avg));
    CH_RETURN_IF_ERROR(
        CheckFilled(state, names.exp_avg_sq, states_[i].exp_avg_sq));
    CH_ASSIGN_OR_RETURN(steps[i], state.Get<int64_t>(names.step));
    if (steps[i] < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("AdamW: \"", names.step, "\" is ", steps[i],
                       "; of a parameter that was updated it is at least 1"));
    }
  }
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (steps[i] == 0) {
      states_[i] = {};
      local_exp_avg_[i] = local_exp_avg_sq_[i] = Tensor();
      continue;
    }
    states_[i].step = steps[i];
    local_exp_avg_[i].storage()->BumpVersion();
    local_exp_avg_sq_[i].storage()->BumpVersion();
  }
  return absl::OkStatus();
}

}  // namespace crosshatch::nn
