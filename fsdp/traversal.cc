// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/fsdp/traversal.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/fsdp/fsdp_state.h"
#include "crosshatch/fsdp/fully_shard.h"

namespace crosshatch::fsdp {
namespace {

void CollectAfterChildren(const nn::NamedModule& named,
                          std::set<const nn::Module*>& seen,
                          std::vector<nn::NamedModule>& modules) {
  if (!seen.insert(named.module).second) return;
  const bool enter = !FsdpState::IsReplicated(*named.module);
  for (const auto& [name, child] : named.module->children()) {
    if (!enter || FsdpState::IsReplicated(*child)) continue;
    CollectAfterChildren(
        {named.name.empty() ? name : absl::StrCat(named.name, ".", name),
         child},
        seen, modules);
  }
  modules.push_back(named);
}

void Apply(nn::Module& module, const std::string& prefix,
           absl::FunctionRef<void(nn::Module&, const std::string&)> visit) {
  visit(module, prefix);
  for (const auto& [name, child] : module.children()) {
    Apply(*child, absl::StrCat(prefix, name, "."), visit);
  }
}

}  // namespace

std::vector<nn::NamedModule> GetModules(nn::Module& root,
                                        TraversalOrder order) {
  if (order == TraversalOrder::kWrapping) {
    std::vector<nn::NamedModule> modules;
    std::set<const nn::Module*> seen;
    CollectAfterChildren({"", &root}, seen, modules);
    return modules;
  }
  std::vector<nn::NamedModule> modules = FsdpState::ModulesOf(root);
  if (order == TraversalOrder::kComposing) {
    std::reverse(modules.begin(), modules.end());
  }
  return modules;
}

std::vector<nn::NamedModule> GetShardedModules(nn::Module& root) {
  std::vector<nn::NamedModule> sharded;
  for (const nn::NamedModule& named :
       GetModules(root, TraversalOrder::kModules)) {
    if (FsdpState::Of(*named.module) != nullptr) sharded.push_back(named);
  }
  return sharded;
}

absl::Status FullyShardEach(nn::Module& root, const DeviceMesh& mesh,
                            const FullyShardOptions& options,
                            absl::FunctionRef<bool(const nn::Module&)> wants) {
  for (const nn::NamedModule& named :
       GetModules(root, TraversalOrder::kComposing)) {
    if (named.module != &root && !wants(*named.module)) continue;
    CH_RETURN_IF_ERROR(FullyShard(*named.module, mesh, options));
  }
  return absl::OkStatus();
}

void ApplyToModules(
    nn::Module& root,
    absl::FunctionRef<void(nn::Module& module, const std::string& prefix)>
        visit) {
  Apply(root, "", visit);
}

std::vector<ParameterNames> GetParameterNames(nn::Module& root,
                                              bool all_names) {
  std::vector<ParameterNames> result;
  ApplyToModules(root, [&](nn::Module& module, const std::string& prefix) {
    for (const auto& [name, parameter] : module.own_parameters()) {
      const auto found = std::find_if(
          result.begin(), result.end(),
          [p = parameter.get()](const auto& e) { return e.parameter == p; });
      if (found == result.end()) {
        result.push_back({parameter.get(), {absl::StrCat(prefix, name)}});
      } else if (all_names) {
        found->names.push_back(absl::StrCat(prefix, name));
      }
    }
  });
  return result;
}

}  // namespace crosshatch::fsdp
