// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/bound_values.h"

#include "crosshatch/base/status_macros.h"

namespace crosshatch::nn {

absl::StatusOr<StateDict> BoundValues::State() {
  StateDict state;
  for (const auto& [name, variable] : variables_) {
    CH_RETURN_IF_ERROR(std::visit(
        [&state, &name = name](auto* at) { return state.Add(name, *at); },
        variable));
  }
  return state;
}

absl::StatusOr<StateDict> BoundValues::StateToFill(
    const std::vector<std::string>& saved) {
  CH_ASSIGN_OR_RETURN(const StateDict own, State());
  CH_ASSIGN_OR_RETURN(
      const std::vector<std::string> names,
      MatchStateNames("these values", NamesOf(own), saved, options_));
  StateDict state;
  for (const std::string& name : names) {
    CH_RETURN_IF_ERROR(state.Add(name, *own.Find(name)));
  }
  return state;
}

absl::Status BoundValues::Restore(const StateDict& state) {
  // All are looked at before the first is set.
  for (const bool set : {false, true}) {
    for (const auto& [name, variable] : variables_) {
      if (state.Find(name) == nullptr && options_.allow_missing) continue;
      CH_RETURN_IF_ERROR(std::visit(
          [&, &name = name](auto* at) -> absl::Status {
            CH_ASSIGN_OR_RETURN(auto value,
                                state.Get<std::decay_t<decltype(*at)>>(name));
            if (set) *at = value;
            return absl::OkStatus();
          },
          variable));
    }
  }
  return absl::OkStatus();
}

}  // namespace crosshatch::nn
