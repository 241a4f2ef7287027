// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tp/parallelize_module.h"

#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/nn/name_pattern.h"

namespace crosshatch::tp {
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
      if (!nn::MatchesName(pattern, named.name)) continue;
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
