// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/optim/optimizer.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/nn/name_pattern.h"
#include "crosshatch/nn/optim/gradient_check.h"
#include "crosshatch/nn/optim/local_grads.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/cast.h"
#include "crosshatch/tensor/ops/in_place.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch::nn {
namespace {

/// One parameter's tensors in a step, all local and contiguous.
struct Part {
  size_t index;
  Tensor data;
  Tensor grad;
};

/// Returns the `count` elements from the start of `first` on.
Tensor RunOf(const Tensor& first, int64_t count) {
  return MakeView(first.storage(), first.storage_offset(), {count}, {1},
                  first.dtype());
}

}  // namespace

Optimizer::Optimizer(const char* name, std::vector<std::string> slots,
                     std::vector<Parameter*> parameters,
                     std::vector<Has> groups,
                     const RestoreOptions& restore_options)
    : name_(name),
      slots_(std::move(slots)),
      parameters_(std::move(parameters)),
      owners_(ShareListed(name_, parameters_)),
      groups_(std::move(groups)),
      restore_options_(restore_options),
      states_(parameters_.size()),
      locals_(parameters_.size()) {}

const OptimizerState& Optimizer::StateOf(size_t i) const {
  CH_CHECK(i < states_.size())
      << name_ << ": the state of parameter " << i << " of " << states_.size();
  return states_[i];
}

size_t Optimizer::GroupOf(size_t i) const {
  CH_CHECK(i < group_of_.size()) << name_ << ": the group of parameter " << i
                                 << " of " << group_of_.size();
  return group_of_[i];
}

absl::Status Optimizer::CheckOption(const std::string& whose,
                                    const char* option, double value,
                                    double end) const {
  if (value >= 0 && value < end) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name_, ": ", whose, option,
                                                 " is at least 0 and below ",
                                                 end, ", not ", value));
}

absl::Status Optimizer::FindGroups() {
  if (group_of_.size() == parameters_.size()) return absl::OkStatus();
  for (size_t group = 0; group < groups_.size(); ++group) {
    if (groups_[group] != nullptr) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(name_, ": group ", group, " of ", groups_.size(),
                     " has no predicate for its parameters; set `has`, e.g. to "
                     "nn::NameMatches(\"**.bias\")"));
  }
  std::vector<size_t> group_of;
  std::vector<bool> is_used(groups_.size() + 1);
  for (const Parameter* parameter : parameters_) {
    size_t group = 0;
    while (group < groups_.size() && !groups_[group](*parameter)) ++group;
    group_of.push_back(group);
    is_used[group] = true;
  }
  for (size_t group = 0; group < groups_.size(); ++group) {
    if (is_used[group]) continue;
    const auto* const by_name = groups_[group].target<NameMatches>();
    const auto left =
        std::find_if(group_of.begin(), group_of.end(),
                     [group](size_t other) { return other > group; });
    return absl::InvalidArgumentError(absl::StrCat(
        name_, ": group ", group, " of ", groups_.size(), ", ",
        by_name == nullptr ? "of a predicate, "
                           : absl::StrCat("of the name pattern \"",
                                          by_name->pattern(), "\", "),
        "has none of the ", parameters_.size(), " parameters",
        left == group_of.end()
            ? "; the groups before it have them all"
            : absl::StrCat(
                  ", such as ",
                  parameters_[static_cast<size_t>(left - group_of.begin())]
                      ->name())));
  }
  group_of_ = std::move(group_of);
  return absl::OkStatus();
}

void Optimizer::MakeStates(absl::FunctionRef<bool(size_t)> wants) {
  const MemoryClassScope memory_class(MemoryClass::kOptimizerState);
  size_t i = 0;
  while (i < parameters_.size()) {
    const auto wants_state = [&](size_t p) {
      // Without a step, the slots may be leftovers of a failed load.
      return wants(p) && states_[p].step == 0;
    };
    if (!wants_state(i)) {
      ++i;
      continue;
    }
    std::optional<HostMemoryScope> on_host;
    if (parameters_[i]->on_host()) on_host.emplace();
    // Parameters that are neighbours in memory share one storage for their
    // state.
    const size_t first = i;
    const Tensor start = LocalTensor(parameters_[first]->data());
    int64_t count = 0;
    do {
      count += LocalTensor(parameters_[i]->data()).numel();
      states_[i].tensors.clear();
      locals_[i].clear();
      ++i;
    } while (i < parameters_.size() && wants_state(i) &&
             FollowsAfter(start, count, LocalTensor(parameters_[i]->data())));
    for (size_t slot = 0; slot < slots_.size(); ++slot) {
      const Tensor all = Zeros({count});
      int64_t offset = 0;
      for (size_t p = first; p < i; ++p) {
        const Tensor& data = parameters_[p]->data();
        const Shape sizes = LocalTensor(data).sizes();
        locals_[p].push_back(MakeView(all.storage(), offset, sizes,
                                      ContiguousStrides(sizes), kFloat32));
        states_[p].tensors.push_back(MakeDTensorLike(data, locals_[p].back()));
        offset += NumElements(sizes);
      }
    }
  }
}

absl::Status Optimizer::Step() {
  RankContext& context = RankContext::Current();
  CH_RETURN_IF_ERROR(context.status());
  CH_RETURN_IF_ERROR(PrepareOptions());
  CH_RETURN_IF_ERROR(FindGroups());
  CH_RETURN_IF_ERROR(
      CheckGradients(absl::StrCat(name_, "::Step").c_str(), parameters_));
  const NoGrad no_grad;
  MakeStates([this](size_t i) { return parameters_[i]->grad().defined(); });

  std::vector<Part> parts;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Parameter& parameter = *parameters_[i];
    if (!parameter.grad().defined()) continue;
    std::optional<HostMemoryScope> on_host;
    if (parameter.on_host()) on_host.emplace();
    const Tensor data = WritableLocalTensor(parameter.data(), name_);
    const Tensor grad = Contiguous(LocalTensor(parameter.grad()));
    CH_CHECK(IsFloatingPoint(data.dtype()) && data.is_contiguous())
        << name_ << ": parameter " << parameter.name() << " is "
        << data.Describe();
    CH_CHECK(data.sizes() == grad.sizes())
        << name_ << ": parameter " << parameter.name() << " " << data.Describe()
        << " has the gradient " << grad.Describe();
    ++states_[i].step;
    // Also if this rank's shard is empty, because all ranks count the step.
    BeginWrite(name_, data);
    for (const Tensor& slot : locals_[i]) BeginWrite(name_, slot);
    if (data.numel() == 0) continue;  // No address for a run to begin at.
    parts.push_back({i, data, grad});
  }

  const MemoryClassScope memory_class(MemoryClass::kOptimizerState);
  size_t next = 0;
  while (next < parts.size()) {
    const Part& first = parts[next];
    const Locals& locals = locals_[first.index];
    const int64_t step = states_[first.index].step;
    const size_t group = group_of_[first.index];
    int64_t count = 0;
    const auto follows = [&](const Part& part) {
      for (size_t slot = 0; slot < slots_.size(); ++slot) {
        if (!FollowsAfter(locals[slot], count, locals_[part.index][slot])) {
          return false;
        }
      }
      return states_[part.index].step == step &&
             HaveEqualOptions(group_of_[part.index], group) &&
             FollowsAfter(first.data, count, part.data) &&
             FollowsAfter(first.grad, count, part.grad);
    };
    do {
      count += parts[next].data.numel();
      ++next;
    } while (next < parts.size() && follows(parts[next]));
    std::optional<HostMemoryScope> on_host;
    if (parameters_[first.index]->on_host()) on_host.emplace();
    const Tensor data = RunOf(first.data, count);
    Run run = {group,
               step,
               ToDType(data, kFloat32),
               ToDType(RunOf(first.grad, count), kFloat32),
               {}};
    for (const Tensor& local : locals) run.slots.push_back(RunOf(local, count));
    Update(run);
    if (data.dtype() != kFloat32) CopyInPlace(data, run.values);
  }
  return context.status();
}

void Optimizer::ZeroGrad() {
  for (Parameter* parameter : parameters_) parameter->set_grad(Tensor());
}

int64_t Optimizer::Find(const std::string& parameter_name) const {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i]->name() == parameter_name) {
      return static_cast<int64_t>(i);
    }
  }
  return -1;
}

absl::Status Optimizer::SetState(const std::string& parameter_name,
                                 const OptimizerState& state) {
  const int64_t found = Find(parameter_name);
  if (found < 0) {
    return absl::NotFoundError(
        absl::StrCat(name_, " has no parameter \"", parameter_name, "\""));
  }
  const auto i = static_cast<size_t>(found);
  const Tensor& data = parameters_[i]->data();
  const auto refuse = [&](const auto&... what) {
    return absl::InvalidArgumentError(absl::StrCat(
        name_, ": the state of parameter ", parameter_name, " ", what...));
  };
  if (state.step < 1) {
    return refuse("has step ", state.step, "; after an update it is 1 or more");
  }
  if (state.step > std::numeric_limits<int64_t>::max() / 2) {
    return refuse("has step ", state.step, ", which is out of range");
  }
  if (state.tensors.size() != slots_.size()) {
    return refuse("must have ", slots_.size(), " tensors, not ",
                  state.tensors.size());
  }
  for (const Tensor& tensor : state.tensors) {
    const bool fits =
        tensor.defined() && tensor.dtype() == kFloat32 &&
        tensor.sizes() == data.sizes() &&
        tensor.is_distributed() == data.is_distributed() &&
        (!data.is_distributed() || (MeshOf(tensor) == MeshOf(data) &&
                                    LayoutOf(tensor) == LayoutOf(data)));
    if (!fits) {
      return refuse("must be float32 with the parameter's sizes and layout, ",
                    data.Describe(), ", not ", tensor.Describe());
    }
  }
  const NoGrad no_grad;
  MakeStates([i](size_t p) { return p == i; });
  states_[i].step = state.step;
  for (size_t slot = 0; slot < slots_.size(); ++slot) {
    CopyInPlace(locals_[i][slot], LocalTensor(state.tensors[slot]));
  }
  return RankContext::Current().status();
}

}  // namespace crosshatch::nn
