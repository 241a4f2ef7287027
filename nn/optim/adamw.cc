// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/optim/adamw.h"

#include <cmath>
#include <limits>
#include <utility>

#include "crosshatch/base/status_macros.h"
#include "crosshatch/tensor/launch.h"

namespace crosshatch::nn {

AdamWGroup NoDecayOfVectors() {
  return {.has = [](const Parameter& p) { return p.data().ndim() < 2; },
          .weight_decay = 0};
}

AdamW::AdamW(std::vector<Parameter*> parameters, const AdamWOptions& options,
             std::vector<AdamWGroup> groups,
             const RestoreOptions& restore_options)
    : GroupedOptimizer("AdamW", {"exp_avg", "exp_avg_sq"},
                       std::move(parameters), options, std::move(groups),
                       restore_options) {}

AdamWOptions AdamW::WithGroup(AdamWOptions options,
                              const AdamWGroup& group) const {
  options.beta1 = group.beta1.value_or(options.beta1);
  options.beta2 = group.beta2.value_or(options.beta2);
  options.eps = group.eps.value_or(options.eps);
  options.weight_decay = group.weight_decay.value_or(options.weight_decay);
  return options;
}

absl::Status AdamW::CheckOptions(const AdamWOptions& options,
                                 const std::string& whose) const {
  const double infinity = std::numeric_limits<double>::infinity();
  CH_RETURN_IF_ERROR(CheckOption(whose, "lr", options.lr, infinity));
  CH_RETURN_IF_ERROR(CheckOption(whose, "beta1", options.beta1, 1));
  CH_RETURN_IF_ERROR(CheckOption(whose, "beta2", options.beta2, 1));
  CH_RETURN_IF_ERROR(CheckOption(whose, "eps", options.eps, infinity));
  return CheckOption(whose, "weight_decay", options.weight_decay, infinity);
}

void AdamW::Update(const Run& run) {
  AdamWArgs args;
  args.count = run.values.numel();
  args.param = run.values.data<float>();
  args.grad = run.grads.data<float>();
  args.exp_avg = run.slots[0].data<float>();
  args.exp_avg_sq = run.slots[1].data<float>();
  internal::LaunchEachStep(
      &KernelTable::adamw, [this, args, group = run.group, first = run.first] {
        const AdamWOptions& options = OptionsOfGroup(group);
        const auto step = static_cast<double>(StateOf(first).step);
        AdamWArgs now = args;
        now.lr = options.lr;
        now.beta1 = options.beta1;
        now.beta2 = options.beta2;
        now.eps = options.eps;
        now.weight_decay = options.weight_decay;
        now.bias_correction1 = 1 - std::pow(options.beta1, step);
        now.bias_correction2 = 1 - std::pow(options.beta2, step);
        return now;
      });
}

AdamWState AdamW::state(size_t i) const {
  const OptimizerState& kept = StateOf(i);
  if (kept.tensors.empty()) return {.step = kept.step};
  return {kept.step, kept.tensors[0], kept.tensors[1]};
}

std::optional<AdamWState> AdamW::FindState(
    const std::string& parameter_name) const {
  const int64_t found = Find(parameter_name);
  if (found < 0) return std::nullopt;
  return state(static_cast<size_t>(found));
}

}  // namespace crosshatch::nn
