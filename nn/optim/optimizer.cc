// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/optim/optimizer.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/nn/name_pattern.h"
#include "crosshatch/nn/optim/gradients.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/cast.h"
#include "crosshatch/tensor/ops/in_place.h"
#include "crosshatch/tensor/rank_context.h"
#include "crosshatch/tensor/step_capture.h"

namespace crosshatch::nn {
namespace {

/// One parameter's tensors in a step, all local and contiguous.
struct Part {
  size_t index;
  Tensor data;
  Tensor grad;
};

/// Returns `count` elements, beginning with the first of `first`.
Tensor RunOf(const Tensor& first, int64_t count) {
  return MakeView(first.storage(), first.storage_offset(), {count}, {1},
                  first.dtype());
}

std::string StepName(const std::string& parameter) {
  return absl::StrCat(parameter, ".step");
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
    const MemoryOf scope(*parameters_[i]);
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
    const MemoryOf scope(parameter);
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

  if (StepCapture* const capture = context.capture(); capture != nullptr) {
    if (!can_be_captured()) {
      context.BreakCapture(absl::StrCat("the arguments of ", name_,
                                        "'s kernels change from step to step"));
    } else {
      std::vector<size_t> updated;
      for (size_t i = 0; i < parameters_.size(); ++i) {
        if (parameters_[i]->grad().defined()) updated.push_back(i);
      }
      capture->OnReplay([this, updated = std::move(updated)] {
        const absl::Status prepared = PrepareOptions();
        if (!prepared.ok()) RankContext::Current().Poison(prepared);
        for (const size_t i : updated) ++states_[i].step;
      });
    }
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
    const MemoryOf scope(*parameters_[first.index]);
    const Tensor data = RunOf(first.data, count);
    Run run = {group,
               step,
               first.index,
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

absl::Status Optimizer::CheckNamed(const Parameter& parameter) const {
  if (!parameter.name().empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      name_, ": the state goes by the names of parameters, and ",
      parameter.data().Describe(), " has none; call Module::NamedParameters"));
}

std::vector<std::string> Optimizer::EntryNames(
    const std::string& parameter) const {
  std::vector<std::string> names;
  for (const std::string& slot : slots_) {
    names.push_back(absl::StrCat(parameter, ".", slot));
  }
  return names;
}

absl::Status Optimizer::AddTo(StateDict& dict, size_t i, bool has_slots) const {
  CH_RETURN_IF_ERROR(CheckNamed(*parameters_[i]));
  const std::string& parameter = parameters_[i]->name();
  const std::vector<std::string> names = EntryNames(parameter);
  for (size_t slot = 0; has_slots && slot < names.size(); ++slot) {
    CH_RETURN_IF_ERROR(dict.Add(names[slot], states_[i].tensors[slot]));
  }
  return dict.Add(StepName(parameter), states_[i].step);
}

absl::StatusOr<StateDict> Optimizer::State() {
  StateDict state;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    CH_RETURN_IF_ERROR(AddTo(state, i, /*has_slots=*/states_[i].step > 0));
  }
  return state;
}

absl::StatusOr<StateDict> Optimizer::StateToFill(
    const std::vector<std::string>& saved) {
  struct Entry {
    size_t parameter;
    bool is_step;
  };
  std::map<std::string, Entry> by_name;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    CH_RETURN_IF_ERROR(CheckNamed(*parameters_[i]));
    const std::string& parameter = parameters_[i]->name();
    std::vector<std::string> names = EntryNames(parameter);
    names.push_back(StepName(parameter));
    for (size_t slot = 0; slot < names.size(); ++slot) {
      const Entry entry = {i, slot + 1 == names.size()};
      if (by_name.emplace(names[slot], entry).second) continue;
      return absl::AlreadyExistsError(absl::StrCat(
          name_, ": two parameters are called \"", parameter, "\""));
    }
  }
  std::vector<bool> is_kept(parameters_.size());
  std::vector<bool> has_slots(parameters_.size());
  for (const std::string& name : saved) {
    const auto found = by_name.find(name);
    if (found == by_name.end()) continue;
    const auto [i, is_step] = found->second;
    is_kept[i] = true;
    has_slots[i] = has_slots[i] || !is_step;
  }
  // Each parameter needs its step and, if it has any slot, all of them. An
  // optional parameter is missing as a whole.
  std::vector<std::string> own;
  std::vector<std::string> left_out;
  for (const auto& [name, entry] : by_name) {
    const auto [i, is_step] = entry;
    if (!is_kept[i] && restore_options_.allow_missing) {
      if (is_step) left_out.push_back(name);
    } else if (is_step || has_slots[i]) {
      own.push_back(name);
    }
  }
  RestoreOptions options = restore_options_;
  options.allow_missing = false;
  const absl::Status matched =
      MatchStateNames(absl::StrCat("this ", name_), own, saved, options)
          .status();
  // Report the differences even if they are allowed.
  if (options.differences != nullptr) {
    std::vector<std::string>& missing = options.differences->missing;
    missing.insert(missing.end(), left_out.begin(), left_out.end());
    std::sort(missing.begin(), missing.end());
  }
  CH_RETURN_IF_ERROR(matched);
  MakeStates([&](size_t i) { return has_slots[i]; });
  StateDict state;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (is_kept[i]) CH_RETURN_IF_ERROR(AddTo(state, i, has_slots[i]));
  }
  return state;
}

absl::Status Optimizer::CheckFilledSlots(const StateDict& state, size_t i,
                                         int64_t step) const {
  const std::string& parameter = parameters_[i]->name();
  const std::vector<std::string> names = EntryNames(parameter);
  size_t filled = 0;
  for (size_t slot = 0; slot < names.size(); ++slot) {
    if (state.Find(names[slot]) == nullptr) continue;
    ++filled;
    if (slot < states_[i].tensors.size()) {
      CH_RETURN_IF_ERROR(
          CheckFilled(state, names[slot], states_[i].tensors[slot]));
    }
  }
  if (step >= 0 && (names.empty() || (step > 0) == (filled > 0)) &&
      (filled == 0 || filled == states_[i].tensors.size())) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      name_, ": \"", StepName(parameter), "\" is ", step, ", and ", filled,
      " of ", names.size(), " other entries of \"", parameter,
      "\" were kept; it is at least 1, with all of them, of a parameter that "
      "was updated, and 0, with none, of one that never was"));
}

absl::Status Optimizer::Restore(const StateDict& state) {
  std::vector<int64_t> steps(parameters_.size());
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const std::string step = StepName(parameters_[i]->name());
    if (state.Find(step) == nullptr) continue;
    CH_ASSIGN_OR_RETURN(steps[i], state.Get<int64_t>(step));
    CH_RETURN_IF_ERROR(CheckFilledSlots(state, i, steps[i]));
    if (steps[i] > std::numeric_limits<int64_t>::max() / 2) {
      return absl::InvalidArgumentError(absl::StrCat(
          name_, ": \"", step, "\" is ", steps[i], ", which is out of range"));
    }
  }
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (steps[i] == 0) {
      states_[i] = {};
      locals_[i].clear();
      continue;
    }
    states_[i].step = steps[i];
    for (const Tensor& local : locals_[i]) BeginWrite(name_, local);
  }
  return absl::OkStatus();
}

}  // namespace crosshatch::nn
