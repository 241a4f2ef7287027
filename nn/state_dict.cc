// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/state_dict.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/status_macros.h"

namespace crosshatch::nn {
namespace {

/// Returns the kind of `value`: "a tensor", "an integer", ...
const char* KindOf(const StateValue& value) {
  constexpr const char* kKinds[] = {"a tensor", "an integer", "a number",
                                    "a text"};
  static_assert(std::variant_size_v<StateValue> == std::size(kKinds));
  return kKinds[value.index()];
}

/// Appends "missing 12: a, b, ...", or nothing.
void AppendNames(const char* what, const std::vector<std::string>& names,
                 std::vector<std::string>& parts) {
  constexpr size_t kMostNames = 10;
  if (names.empty()) return;
  const auto end = names.begin() + std::min(names.size(), kMostNames);
  parts.push_back(absl::StrCat(names.size(), " ", what, " (",
                               absl::StrJoin(names.begin(), end, ", "),
                               names.size() > kMostNames ? ", ...)" : ")"));
}

}  // namespace

absl::Status StateDict::Add(std::string name, StateValue value) {
  if (name.empty()) {
    return absl::InvalidArgumentError("an entry of a state has no name");
  }
  const auto [it, is_new] = entries_.emplace(std::move(name), std::move(value));
  if (is_new) return absl::OkStatus();
  return absl::AlreadyExistsError(
      absl::StrCat("two entries of a state are called \"", it->first, "\""));
}

absl::Status StateDict::AddAll(absl::string_view prefix,
                               const StateDict& part) {
  for (const auto& [name, value] : part.entries_) {
    CH_RETURN_IF_ERROR(Add(absl::StrCat(prefix, ".", name), value));
  }
  return absl::OkStatus();
}

const StateValue* StateDict::Find(absl::string_view name) const {
  const auto it = entries_.find(name);
  return it == entries_.end() ? nullptr : &it->second;
}

StateValue* StateDict::Find(absl::string_view name) {
  const auto it = entries_.find(name);
  return it == entries_.end() ? nullptr : &it->second;
}

StateDict StateDict::Part(absl::string_view prefix) const {
  const std::string start = absl::StrCat(prefix, ".");
  StateDict part;
  for (auto it = entries_.lower_bound(start);
       it != entries_.end() && absl::StartsWith(it->first, start); ++it) {
    part.entries_.emplace(it->first.substr(start.size()), it->second);
  }
  return part;
}

template <typename T>
absl::StatusOr<T> StateDict::Get(absl::string_view name) const {
  const StateValue* value = Find(name);
  if (value == nullptr) {
    return absl::NotFoundError(
        absl::StrCat("the state has no entry \"", name, "\""));
  }
  if (const T* held = std::get_if<T>(value)) return *held;
  return absl::InvalidArgumentError(
      absl::StrCat("the entry \"", name, "\" of the state is ", KindOf(*value),
                   ", not ", KindOf(StateValue(T()))));
}

namespace {

// Returns a hint if the missing names exist under a prefix of a CombinedState.
std::string PrefixHint(const StateDifferences& differences) {
  if (differences.missing.empty()) return {};
  const std::string& name = differences.missing.front();
  for (const std::string& kept : differences.unexpected) {
    if (!absl::EndsWith(kept, absl::StrCat(".", name))) continue;
    const std::string part = kept.substr(0, kept.size() - name.size() - 1);
    return absl::StrCat("; \"", kept, "\" was kept, of the part \"", part,
                        "\" of a CombinedState: load into CombinedState({{\"",
                        part, "\", &state}}, {.allow_unexpected = true})");
  }
  return {};
}

}  // namespace

absl::StatusOr<std::vector<std::string>> MatchStateNames(
    const std::string& what, const std::vector<std::string>& own,
    const std::vector<std::string>& saved, const RestoreOptions& options) {
  std::vector<std::string> common;
  StateDifferences differences;
  std::set_intersection(own.begin(), own.end(), saved.begin(), saved.end(),
                        std::back_inserter(common));
  std::set_difference(own.begin(), own.end(), saved.begin(), saved.end(),
                      std::back_inserter(differences.missing));
  std::set_difference(saved.begin(), saved.end(), own.begin(), own.end(),
                      std::back_inserter(differences.unexpected));
  if (options.differences != nullptr) *options.differences = differences;
  std::vector<std::string> parts;
  if (!options.allow_missing) {
    AppendNames("missing", differences.missing, parts);
  }
  if (!options.allow_unexpected) {
    AppendNames("unexpected", differences.unexpected, parts);
  }
  if (parts.empty()) return common;
  return absl::InvalidArgumentError(
      absl::StrCat("the state that was kept is not that of ", what, ": ",
                   absl::StrJoin(parts, ", "), PrefixHint(differences)));
}

absl::Status CheckFilled(const StateDict& state, const std::string& name,
                         const Tensor& filled) {
  CH_ASSIGN_OR_RETURN(const Tensor tensor, state.Get<Tensor>(name));
  if (filled.defined() && tensor.SameAs(filled)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the entry \"", name,
                   "\" of the state is not the tensor that StateToFill gave"));
}

std::vector<std::string> NamesOf(const StateDict& state) {
  std::vector<std::string> names;
  for (const auto& [name, value] : state.entries()) names.push_back(name);
  return names;
}

template absl::StatusOr<Tensor> StateDict::Get(absl::string_view) const;
template absl::StatusOr<int64_t> StateDict::Get(absl::string_view) const;
template absl::StatusOr<double> StateDict::Get(absl::string_view) const;
template absl::StatusOr<std::string> StateDict::Get(absl::string_view) const;

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
  // Check all of them before setting the first.
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

namespace {

absl::Status InPart(const std::string& part, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(
      status.code(),
      absl::StrCat("\"", part, "\": ", std::string(status.message())));
}

}  // namespace

CombinedState::CombinedState(Parts parts, const RestoreOptions& options)
    : parts_(std::move(parts)), options_(options) {
  std::set<std::string> names;
  for (const auto& [name, part] : parts_) {
    CH_CHECK(part != nullptr) << "CombinedState: part " << name;
    CH_CHECK(!name.empty() && name.find('.') == std::string::npos &&
             names.insert(name).second)
        << "CombinedState: \"" << name
        << "\" is empty, has a dot or is there twice";
  }
}

absl::StatusOr<StateDict> CombinedState::State() {
  StateDict state;
  for (const auto& [name, part] : parts_) {
    const absl::StatusOr<StateDict> own = part->State();
    CH_RETURN_IF_ERROR(InPart(name, own.status()));
    CH_RETURN_IF_ERROR(state.AddAll(name, *own));
  }
  return state;
}

absl::StatusOr<StateDict> CombinedState::StateToFill(
    const std::vector<std::string>& saved) {
  std::map<std::string, std::vector<std::string>> by_part;
  for (const std::string& name : saved) {
    const size_t dot = name.find('.');
    std::vector<std::string>& names = by_part[name.substr(0, dot)];
    if (dot != std::string::npos) names.push_back(name.substr(dot + 1));
  }
  if (options_.differences != nullptr) {
    StateDifferences& differences = *options_.differences;
    differences = {};
    for (const auto& [name, names] : by_part)
      differences.unexpected.push_back(name);
    for (const auto& [name, part] : parts_) {
      if (by_part.count(name) > 0) {
        std::erase(differences.unexpected, name);
      } else {
        differences.missing.push_back(name);
      }
    }
  }
  StateDict state;
  std::vector<std::string> errors;
  for (const auto& [name, part] : parts_) {
    const auto found = by_part.find(name);
    if (found == by_part.end() && options_.allow_missing) continue;
    const absl::StatusOr<StateDict> own = part->StateToFill(
        found == by_part.end() ? std::vector<std::string>() : found->second);
    if (own.ok()) {
      CH_RETURN_IF_ERROR(state.AddAll(name, *own));
    } else if (absl::IsInvalidArgument(own.status())) {
      errors.push_back(std::string(InPart(name, own.status()).message()));
    } else {
      return InPart(name, own.status());
    }
    if (found != by_part.end()) by_part.erase(found);
  }
  for (const auto& [name, names] : by_part) {
    if (options_.allow_unexpected) break;
    errors.push_back(absl::StrCat("the checkpoint has a part \"", name, "\" (",
                                  names.size(),
                                  names.size() == 1 ? " entry" : " entries",
                                  ") that this CombinedState lacks"));
  }
  if (errors.empty()) return state;
  return absl::InvalidArgumentError(absl::StrJoin(errors, "; "));
}

absl::Status CombinedState::Restore(const StateDict& state) {
  for (const auto& [name, part] : parts_) {
    const StateDict own = state.Part(name);
    if (own.empty() && options_.allow_missing) continue;
    CH_RETURN_IF_ERROR(InPart(name, part->Restore(own)));
  }
  return absl::OkStatus();
}

}  // namespace crosshatch::nn
