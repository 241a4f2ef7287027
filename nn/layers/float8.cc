// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/layers/float8.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "crosshatch/nn/name_pattern.h"

namespace crosshatch::nn {
namespace {

/// Returns the name of a module of another class that has the parameter, by
/// parameter.
std::map<const Parameter*, std::string> UsersBesidesLinear(Module& module) {
  std::map<const Parameter*, std::string> users;
  for (const NamedModule& named : RootOf(module).NamedModules()) {
    if (dynamic_cast<const Linear*>(named.module) != nullptr) continue;
    for (const auto& [name, parameter] : named.module->own_parameters()) {
      users.emplace(parameter.get(), *named.module->label());
    }
  }
  return users;
}

std::string WhySkipped(const std::string& name, const Linear& linear,
                       const Float8LinearConfig& config,
                       const std::map<const Parameter*, std::string>& users) {
  for (const std::string& pattern : config.skip) {
    if (MatchesName(pattern, name)) return absl::StrCat("matches ", pattern);
  }
  const Tensor& weight = linear.weight()->data();
  if (weight.size(0) % 16 != 0 || weight.size(1) % 16 != 0) {
    return absl::StrCat(weight.size(1), " to ", weight.size(0),
                        " features, not both multiples of 16");
  }
  const auto user = users.find(linear.weight().get());
  if (user != users.end()) {
    return absl::StrCat("its weight is tied with ", user->second);
  }
  return "";
}

}  // namespace

std::string Float8Conversion::ToString() const {
  std::string text = absl::StrCat(converted.size(), " linear layers in float8");
  const char* separator = "; skipped: ";
  for (const Skipped& layer : skipped) {
    absl::StrAppend(&text, separator, layer.name, " (", layer.reason, ")");
    separator = ", ";
  }
  return text;
}

Float8Conversion ConvertToFloat8Training(Module& module,
                                         const Float8LinearConfig& config) {
  const auto users = UsersBesidesLinear(module);
  Float8Conversion conversion;
  for (const NamedModule& named : module.NamedModules()) {
    auto* const linear = dynamic_cast<Linear*>(named.module);
    if (linear == nullptr) continue;
    std::string why = WhySkipped(named.name, *linear, config, users);
    if (!why.empty()) {
      conversion.skipped.push_back({named.name, std::move(why)});
      continue;
    }
    linear->set_float8(config.recipe);
    conversion.converted.push_back(named.name);
  }
  return conversion;
}

std::vector<Parameter*> Float8Weights(Module& module, Float8Recipe recipe) {
  // A weight that another layer uses without the recipe is not one.
  std::vector<Parameter*> weights;
  std::vector<const Parameter*> others;
  for (const NamedModule& named : module.NamedModules()) {
    const auto* const linear = dynamic_cast<const Linear*>(named.module);
    if (linear == nullptr) continue;
    Parameter* const weight = linear->weight().get();
    if (linear->float8() != recipe) {
      others.push_back(weight);
    } else if (std::find(weights.begin(), weights.end(), weight) ==
               weights.end()) {
      weights.push_back(weight);
    }
  }
  std::erase_if(weights, [&](const Parameter* weight) {
    return std::find(others.begin(), others.end(), weight) != others.end();
  });
  return weights;
}

}  // namespace crosshatch::nn
