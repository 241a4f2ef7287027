// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/adamw.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/nn/gradient_check.h"
#include "crosshatch/nn/neighbours.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/launch.h"
#include "crosshatch/tensor/ops/cast.h"
#include "crosshatch/tensor/ops/in_place.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch::nn {
namespace {

/// `local` as the part that this rank holds of a tensor like `whole`.
Tensor WrapLike(const Tensor& whole, const Tensor& local) {
  if (!whole.is_distributed()) return local;
  return MakeDTensor(local, MeshOf(whole), LayoutOf(whole), whole.sizes());
}

// `whose` stands before the names of options in messages: "group 1's ".
absl::Status CheckOptions(const AdamWOptions& options,
                          const std::string& whose) {
  const double infinity = std::numeric_limits<double>::infinity();
  const struct {
    const char* name;
    double value;
    double end;  // The first value that is too large.
  } ranges[] = {{"lr", options.lr, infinity},
                {"beta1", options.beta1, 1},
                {"beta2", options.beta2, 1},
                {"eps", options.eps, infinity},
                {"weight_decay", options.weight_decay, infinity}};
  for (const auto& range : ranges) {
    if (range.value >= 0 && range.value < range.end) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("AdamW: ", whose, range.name, " is at least 0 and below ",
                     range.end, ", not ", range.value));
  }
  return absl::OkStatus();
}

/// What one parameter brings to a step. All local and contiguous.
struct Update {
  size_t index;
  int64_t step;
  Tensor data;
  Tensor grad;
};

/// The `count` elements that begin where `first` does.
Tensor RunOf(const Tensor& first, int64_t count) {
  return MakeView(first.storage(), first.storage_offset(), {count}, {1},
                  first.dtype());
}

}  // namespace

AdamWGroup NoDecayOfVectors() {
  return {.has = [](const Parameter& p) { return p.data().ndim() < 2; },
          .weight_decay = 0};
}

AdamW::AdamW(std::vector<Parameter*> parameters, const AdamWOptions& options,
             std::vector<AdamWGroup> groups,
             const RestoreOptions& restore_options)
    : options_(options),
      groups_(std::move(groups)),
      restore_options_(restore_options),
      parameters_(std::move(parameters)),
      states_(parameters_.size()),
      local_exp_avg_(parameters_.size()),
      local_exp_avg_sq_(parameters_.size()) {}

absl::Status AdamW::FindGroups() {
  if (group_of_.size() == parameters_.size()) return absl::OkStatus();
  std::vector<size_t> group_of;
  std::vector<bool> is_used(groups_.size() + 1);
  for (const Parameter* parameter : parameters_) {
    size_t group = 0;
    while (group < groups_.size() && !groups_[group].has(*parameter)) ++group;
    group_of.push_back(group);
    is_used[group] = true;
  }
  for (size_t group = 0; group < groups_.size(); ++group) {
    if (is_used[group]) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "AdamW: group ", group, " of ", groups_.size(), " has none of the ",
        parameters_.size(), " parameters that the groups before it leave"));
  }
  group_of_ = std::move(group_of);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<AdamWOptions>> AdamW::GroupOptions() {
  CH_RETURN_IF_ERROR(CheckOptions(options_, ""));
  CH_RETURN_IF_ERROR(FindGroups());
  std::vector<AdamWOptions> all;
  for (size_t i = 0; i < groups_.size(); ++i) {
    const AdamWGroup& group = groups_[i];
    all.push_back(
        {.lr = options_.lr * group.lr_scale,
         .beta1 = group.beta1.value_or(options_.beta1),
         .beta2 = group.beta2.value_or(options_.beta2),
         .eps = group.eps.value_or(options_.eps),
         .weight_decay = group.weight_decay.value_or(options_.weight_decay)});
    CH_RETURN_IF_ERROR(
        CheckOptions(all.back(), absl::StrCat("group ", i, "'s ")));
  }
  all.push_back(options_);
  return all;
}

absl::StatusOr<AdamWOptions> AdamW::OptionsOf(size_t i) {
  CH_ASSIGN_OR_RETURN(const std::vector<AdamWOptions> all, GroupOptions());
  return all[group_of_[i]];
}

void AdamW::MakeStates(absl::FunctionRef<bool(size_t)> wants) {
  const MemoryClassScope memory_class(MemoryClass::kOptimizerState);
  size_t i = 0;
  while (i < parameters_.size()) {
    const auto wants_state = [&](size_t p) {
      // What a load that failed has filled is no state.
      return wants(p) && states_[p].step == 0;
    };
    if (!wants_state(i)) {
      ++i;
      continue;
    }
    std::optional<HostMemoryScope> on_host;
    if (parameters_[i]->on_host()) on_host.emplace();
    // One storage for as many parameters as are neighbours in theirs.
    const size_t first = i;
    const Tensor start = LocalTensor(parameters_[first]->data());
    int64_t count = 0;
    do {
      count += LocalTensor(parameters_[i]->data()).numel();
      ++i;
    } while (i < parameters_.size() && wants_state(i) &&
             FollowsAfter(start, count, LocalTensor(parameters_[i]->data())));
    const Tensor exp_avg = Zeros({count});
    const Tensor exp_avg_sq = Zeros({count});
    int64_t offset = 0;
    for (size_t p = first; p < i; ++p) {
      const Tensor& data = parameters_[p]->data();
      const Shape sizes = LocalTensor(data).sizes();
      const auto part = [&](const Tensor& all) {
        return MakeView(all.storage(), offset, sizes, ContiguousStrides(sizes),
                        kFloat32);
      };
      local_exp_avg_[p] = part(exp_avg);
      local_exp_avg_sq_[p] = part(exp_avg_sq);
      states_[p].exp_avg = WrapLike(data, local_exp_avg_[p]);
      states_[p].exp_avg_sq = WrapLike(data, local_exp_avg_sq_[p]);
      offset += NumElements(sizes);
    }
  }
}

absl::Status AdamW::Step() {
  RankContext& context = RankContext::Current();
  CH_RETURN_IF_ERROR(context.status());
  CH_ASSIGN_OR_RETURN(const std::vector<AdamWOptions> by_group, GroupOptions());
  CH_RETURN_IF_ERROR(CheckGradients("AdamW::Step", parameters_));
  const NoGrad no_grad;
  MakeStates([this](size_t i) { return parameters_[i]->grad().defined(); });

  std::vector<Update> updates;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Parameter& parameter = *parameters_[i];
    if (!parameter.grad().defined()) continue;
    std::optional<HostMemoryScope> on_host;
    if (parameter.on_host()) on_host.emplace();
    const Tensor data = WritableLocalTensor(parameter.data(), "AdamW");
    const Tensor grad = Contiguous(LocalTensor(parameter.grad()));
    CH_CHECK(IsFloatingPoint(data.dtype()) && data.is_contiguous())
        << "adamw: parameter " << parameter.name() << " is " << data.Describe();
    CH_CHECK(data.sizes() == grad.sizes())
        << "adamw: parameter " << parameter.name() << " " << data.Describe()
        << " has the gradient " << grad.Describe();
    ++states_[i].step;
    // Also where this rank holds none of it: all ranks count a step.
    data.storage()->BumpVersion();
    if (data.numel() == 0) continue;  // No address to begin a run with.
    updates.push_back({i, states_[i].step, data, grad});
  }

  const MemoryClassScope memory_class(MemoryClass::kOptimizerState);
  size_t next = 0;
  while (next < updates.size()) {
    const Update& first = updates[next];
    const Tensor& exp_avg = local_exp_avg_[first.index];
    const Tensor& exp_avg_sq = local_exp_avg_sq_[first.index];
    const AdamWOptions& options = by_group[group_of_[first.index]];
    int64_t count = 0;
    do {
      count += updates[next].data.numel();
      ++next;
    } while (
        next < updates.size() && updates[next].step == first.step &&
        by_group[group_of_[updates[next].index]] == options &&
        FollowsAfter(first.data, count, updates[next].data) &&
        FollowsAfter(first.grad, count, updates[next].grad) &&
        FollowsAfter(exp_avg, count, local_exp_avg_[updates[next].index]) &&
        FollowsAfter(exp_avg_sq, count,
                     local_exp_avg_sq_[updates[next].index]));
    std::optional<HostMemoryScope> on_host;
    if (parameters_[first.index]->on_host()) on_host.emplace();
    const Tensor data = RunOf(first.data, count);
    const Tensor values = ToDType(data, kFloat32);
    const Tensor grads = ToDType(RunOf(first.grad, count), kFloat32);
    const auto step = static_cast<double>(first.step);
    internal::Launch(&KernelTable::adamw,
                     AdamWArgs{
                         .count = count,
                         .param = values.data<float>(),
                         .grad = grads.data<float>(),
                         .exp_avg = exp_avg.data<float>(),
                         .exp_avg_sq = exp_avg_sq.data<float>(),
                         .lr = options.lr,
                         .beta1 = options.beta1,
                         .beta2 = options.beta2,
                         .eps = options.eps,
                         .weight_decay = options.weight_decay,
                         .bias_correction1 = 1 - std::pow(options.beta1, step),
                         .bias_correction2 = 1 - std::pow(options.beta2, step),
                     });
    if (data.dtype() != kFloat32) CopyInPlace(data, values);
  }
  return context.status();
}

void AdamW::ZeroGrad() {
  for (Parameter* parameter : parameters_) parameter->set_grad(Tensor());
}

const AdamWState* AdamW::FindState(const std::string& parameter_name) const {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i]->name() == parameter_name) return &states_[i];
  }
  return nullptr;
}

}  // namespace crosshatch::nn
