// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/combined_state.h"

#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/status_macros.h"

namespace crosshatch::nn {
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
    errors.push_back(absl::StrCat("\"", name, "\" with ", names.size(),
                                  " entries was kept, and is no part here"));
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
