// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/fsdp/fully_shard.h"

#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/fsdp/fsdp_state.h"
#include "crosshatch/fsdp/param_group.h"

namespace crosshatch::fsdp {
namespace {

// The part that all names share, up to a dot: what people call the module.
std::string CommonPrefix(const std::vector<nn::Parameter*>& parameters) {
  std::string prefix = parameters.front()->name();
  for (const nn::Parameter* parameter : parameters) {
    const std::string& name = parameter->name();
    while (name.compare(0, prefix.size(), prefix) != 0) prefix.pop_back();
  }
  const size_t dot = prefix.rfind('.');
  return dot == std::string::npos ? "root" : prefix.substr(0, dot);
}

// Parameters below `module` that have no group yet, each once.
std::vector<nn::Parameter*> Unclaimed(nn::Module& module) {
  std::set<const nn::Parameter*> claimed;
  for (const nn::NamedModule& named : module.NamedModules()) {
    const FsdpState* const state = FsdpState::Of(*named.module);
    if (state == nullptr) continue;
    for (const auto& group : state->groups()) {
      for (const nn::Parameter* p : group->parameters()) claimed.insert(p);
    }
  }
  std::vector<nn::Parameter*> parameters;
  for (const nn::NamedParameter& named : module.NamedParameters()) {
    if (claimed.count(named.parameter) == 0) {
      parameters.push_back(named.parameter);
    }
  }
  return parameters;
}

}  // namespace

absl::Status FullyShard(nn::Module& module, const DeviceMesh& mesh,
                        const FullyShardOptions& options) {
  if (mesh.ndim() > 2) {
    return absl::InvalidArgumentError(absl::StrCat(
        "FullyShard takes a mesh of one axis (shard) or two (replicate, "
        "shard), not ",
        mesh.ToString()));
  }
  if (!mesh.coordinate().has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("FullyShard: this rank is not on ", mesh.ToString()));
  }
  if (FsdpState::Of(module) != nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        "FullyShard: this ", module.type_name(), " is sharded already"));
  }
  const std::vector<nn::Parameter*> unclaimed = Unclaimed(module);
  // Ordered by first appearance, so that all ranks make the same groups.
  std::vector<std::pair<std::pair<DType, bool>, std::vector<nn::Parameter*>>>
      kinds;
  for (nn::Parameter* parameter : unclaimed) {
    const std::pair<DType, bool> kind = {parameter->data().dtype(),
                                         parameter->requires_grad()};
    auto found = kinds.begin();
    while (found != kinds.end() && found->first != kind) ++found;
    if (found == kinds.end()) found = kinds.insert(found, {kind, {}});
    found->second.push_back(parameter);
  }
  std::vector<std::unique_ptr<ParamGroup>> groups;
  for (const auto& [kind, parameters] : kinds) {
    std::string name = CommonPrefix(unclaimed);
    if (kinds.size() > 1) {
      absl::StrAppend(&name, " (", Name(kind.first),
                      kind.second ? "" : ", frozen", ")");
    }
    CH_ASSIGN_OR_RETURN(
        groups.emplace_back(),
        ParamGroup::Create(std::move(name), parameters, mesh, options));
  }
  for (const auto& group : groups) group->Commit();
  module.Attach(FsdpState::kKey, std::make_shared<FsdpState>(
                                     module, options, std::move(groups)));
  return absl::OkStatus();
}

std::string DescribePlan(nn::Module& module) {
  std::string text;
  for (const nn::NamedModule& named : module.NamedModules()) {
    const FsdpState* const state = FsdpState::Of(*named.module);
    if (state == nullptr) continue;
    for (const auto& group : state->groups()) {
      absl::StrAppend(&text, group->Describe());
    }
  }
  return text;
}

}  // namespace crosshatch::fsdp
