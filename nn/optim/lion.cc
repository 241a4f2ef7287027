// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/optim/lion.h"

#include <limits>
#include <utility>

#include "crosshatch/base/status_macros.h"
#include "crosshatch/tensor/ops/in_place.h"
#include "crosshatch/tensor/ops/pointwise.h"

namespace crosshatch::nn {

Lion::Lion(std::vector<Parameter*> parameters, const LionOptions& options,
           std::vector<LionGroup> groups, const RestoreOptions& restore_options)
    : GroupedOptimizer("Lion", {"exp_avg"}, std::move(parameters), options,
                       std::move(groups), restore_options) {}

LionOptions Lion::WithGroup(LionOptions options, const LionGroup& group) const {
  options.beta1 = group.beta1.value_or(options.beta1);
  options.beta2 = group.beta2.value_or(options.beta2);
  options.weight_decay = group.weight_decay.value_or(options.weight_decay);
  return options;
}

absl::Status Lion::CheckOptions(const LionOptions& options,
                                const std::string& whose) const {
  const double infinity = std::numeric_limits<double>::infinity();
  CH_RETURN_IF_ERROR(CheckOption(whose, "lr", options.lr, infinity));
  CH_RETURN_IF_ERROR(CheckOption(whose, "beta1", options.beta1, 1));
  CH_RETURN_IF_ERROR(CheckOption(whose, "beta2", options.beta2, 1));
  return CheckOption(whose, "weight_decay", options.weight_decay, infinity);
}

void Lion::Update(const Run& run) {
  const LionOptions& options = OptionsOfGroup(run.group);
  const Tensor& mean = run.slots[0];
  const Tensor along =
      Sign(Add(Mul(mean, options.beta1), run.grads, 1 - options.beta1));
  if (options.weight_decay != 0) {
    MulInPlace(run.values, 1 - options.lr * options.weight_decay);
  }
  AddInPlace(run.values, along, -options.lr);
  MulInPlace(mean, options.beta2);
  AddInPlace(mean, run.grads, 1 - options.beta2);
}

}  // namespace crosshatch::nn
