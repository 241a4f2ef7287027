// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tp/expert_parallel.h"

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/dtensor/layout/layout.h"
#include "crosshatch/nn/distribute_module.h"
#include "crosshatch/nn/layers/mixture_of_experts.h"

namespace crosshatch::tp {
namespace {

class Experts final : public ParallelStyle {
 public:
  explicit Experts(ExpertParallelOptions options)
      : options_(std::move(options)) {}

  const char* name() const override { return "ExpertParallel"; }

  absl::Status Check(const nn::Module& module,
                     const std::string& module_name) const override {
    if (dynamic_cast<const nn::MixtureOfExperts*>(&module) != nullptr) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(absl::StrCat(
        name(), " fits nn::MixtureOfExperts; module \"", module_name,
        "\" is of another class, which calls itself ", module.type_name()));
  }

  absl::Status Apply(nn::Module& module, const std::string& /*module_name*/,
                     const DeviceMesh& mesh) const override {
    auto* const experts = dynamic_cast<nn::MixtureOfExperts*>(&module);
    CH_RETURN_IF_ERROR(experts->Place(
        {.experts = mesh, .batch = options_.batch, .shared = options_.shared}));
    const Layout by_expert =
        Layout::Replicated(mesh.layout(), 3).WithShard(0, 0);
    for (const auto& weight :
         {experts->gate_proj(), experts->up_proj(), experts->down_proj()}) {
      CH_RETURN_IF_ERROR(nn::DistributeParameter(*weight, mesh, by_expert));
    }
    if (!options_.shared.has_value()) return absl::OkStatus();
    return nn::DistributeParameter(
        *experts->router(), *options_.shared,
        Layout::Replicated(options_.shared->layout(), 2));
  }

 private:
  const ExpertParallelOptions options_;
};

}  // namespace

Style ExpertParallel(ExpertParallelOptions options) {
  return std::make_shared<Experts>(std::move(options));
}

}  // namespace crosshatch::tp
