// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tp/parallelize_module.h"

#include <fnmatch.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "crosshatch/base/status_macros.h"

namespace crosshatch::tp {
namespace {

bool Matches(const std::string& pattern, const std::string& name) {
  const std::vector<std::string> patterns = absl::StrSplit(pattern, '.');
  const std::vector<std::string> parts = absl::StrSplit(name, '.');
  if (patterns.size() != parts.size()) return false;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (fnmatch(patterns[i].c_str(), parts[i].c_str(), 0) != 0) return false;
  }
  return true;
}

}  // namespace

absl::Status ParallelizeModule(nn::Module& root, const DeviceMesh& mesh,
                               const ParallelPlan& plan) {
  if (mesh.ndim() != 1 || !mesh.coordinate().has_value()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "ParallelizeModule takes a mesh of one axis that this rank is on, not ",
        mesh.ToString(), "; slice one: mesh.Slice(\"tp\")"));
  }
  const std::vector<nn::NamedModule> modules = root.NamedModules();
  // Names the parameters, for the messages of styles.
  root.NamedParameters();
  for (const auto& [pattern, style] : plan) {
    bool matched = false;
    for (const nn::NamedModule& named : modules) {
      if (!Matches(pattern, named.name)) continue;
      matched = true;
      CH_RETURN_IF_ERROR(style->Apply(*named.module, named.name, mesh));
    }
    if (!matched) {
      return absl::InvalidArgumentError(
          absl::StrCat("ParallelizeModule: the pattern \"", pattern, "\" for ",
                       style->name(), " matches no module"));
    }
  }
  return absl::OkStatus();
}

}  // namespace crosshatch::tp
