// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/optim/sgd.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/tensor/ops/in_place.h"
#include "crosshatch/tensor/ops/pointwise.h"

namespace crosshatch::nn {
namespace {

std::vector<std::string> Slots(const SgdOptions& options,
                               const std::vector<SgdGroup>& groups) {
  const bool any =
      options.momentum != 0 ||
      std::any_of(groups.begin(), groups.end(), [](const SgdGroup& group) {
        return group.momentum.value_or(0) != 0;
      });
  if (!any) return {};
  return {"momentum_buffer"};
}

}  // namespace

Sgd::Sgd(std::vector<Parameter*> parameters, const SgdOptions& options,
         std::vector<SgdGroup> groups, const RestoreOptions& restore_options)
    : GroupedOptimizer("Sgd", Slots(options, groups), std::move(parameters),
                       options, groups, restore_options) {}

SgdOptions Sgd::WithGroup(SgdOptions options, const SgdGroup& group) const {
  options.momentum = group.momentum.value_or(options.momentum);
  options.weight_decay = group.weight_decay.value_or(options.weight_decay);
  return options;
}

absl::Status Sgd::CheckOptions(const SgdOptions& options,
                               const std::string& whose) const {
  const double infinity = std::numeric_limits<double>::infinity();
  CH_RETURN_IF_ERROR(CheckOption(whose, "lr", options.lr, infinity));
  CH_RETURN_IF_ERROR(CheckOption(whose, "momentum", options.momentum, 1));
  CH_RETURN_IF_ERROR(CheckOption(whose, "dampening", options.dampening, 1));
  CH_RETURN_IF_ERROR(
      CheckOption(whose, "weight_decay", options.weight_decay, infinity));
  if (options.nesterov && (options.momentum == 0 || options.dampening != 0)) {
    return absl::InvalidArgumentError(absl::StrCat(
        name(), ": ", whose, "nesterov goes with a momentum above 0 and a ",
        "dampening of 0, not with ", options.momentum, " and ",
        options.dampening));
  }
  return absl::OkStatus();
}

void Sgd::Update(const Run& run) {
  const SgdOptions& options = OptionsOfGroup(run.group);
  Tensor along = options.weight_decay == 0
                     ? run.grads
                     : Add(run.grads, run.values, options.weight_decay);
  if (options.momentum != 0) {
    const Tensor& sum = run.slots[0];
    MulInPlace(sum, options.momentum);
    AddInPlace(sum, along, run.step == 1 ? 1 : 1 - options.dampening);
    along = options.nesterov ? Add(along, sum, options.momentum) : sum;
  }
  AddInPlace(run.values, along, -options.lr);
}

}  // namespace crosshatch::nn
