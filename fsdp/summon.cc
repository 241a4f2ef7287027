// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/fsdp/summon.h"

#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/fsdp/fsdp_state.h"
#include "crosshatch/tensor/ops/cast.h"
#include "crosshatch/tensor/ops/in_place.h"
#include "crosshatch/tensor/ops/view.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch::fsdp {
namespace {

// Returns a copy of all elements of `t`, undefined if this rank keeps none.
Tensor WholeOf(const Tensor& t, const SummonOptions& options) {
  Tensor full = FullTensor(t).Detach();
  const bool shared = full.storage() == LocalTensor(t).storage();
  const bool is_first = t.is_distributed()
                            ? MeshOf(t).root().layout().ranks()[0] ==
                                  RankContext::Current().world_rank()
                            : RankContext::Current().world_rank() == 0;
  if (options.rank0_only && !is_first) return {};
  if (options.offload_to_cpu) {
    const HostMemoryScope host;
    return Clone(full);
  }
  return shared ? Clone(full) : Contiguous(full);
}

void TakeShard(const Tensor& t, const Tensor& full) {
  Tensor part = full;
  if (t.is_distributed()) {
    if (!MeshOf(t).coordinate().has_value()) return;
    const Box box = LocalBoxOf(t);
    for (int d = 0; d < t.ndim(); ++d) {
      const Interval interval = box.interval(d);
      part = Slice(part, d, interval.begin, interval.end);
    }
  }
  CopyInPlace(LocalTensor(t), part);
}

std::set<const nn::Parameter*> Wanted(nn::Module& module,
                                      const SummonOptions& options) {
  std::set<const nn::Parameter*> wanted;
  if (options.recurse) {
    for (const nn::Parameter* p : module.Parameters()) wanted.insert(p);
  } else if (const FsdpState* const state = FsdpState::Of(module)) {
    for (const auto& group : state->groups()) {
      for (const nn::Parameter* p : group->parameters()) wanted.insert(p);
    }
  }
  return wanted;
}

// Returns the states of the module tree of `module` that gather `parameters`.
std::vector<FsdpState*> OwnersOf(
    const std::set<const nn::Parameter*>& parameters, nn::Module& module) {
  std::vector<FsdpState*> owners;
  for (FsdpState* state : FsdpState::AllInModuleTree(module)) {
    bool owns = false;
    for (const auto& group : state->groups()) {
      for (const nn::Parameter* p : group->parameters()) {
        owns = owns || parameters.count(p) != 0;
      }
    }
    if (owns) owners.push_back(state);
  }
  return owners;
}

}  // namespace

absl::StatusOr<std::unique_ptr<SummonFullParameters>>
SummonFullParameters::Begin(nn::Module& module, const SummonOptions& options) {
  CH_RETURN_IF_ERROR(RankContext::Current().status());
  if (options.rank0_only && options.writeback) {
    return absl::InvalidArgumentError(
        "SummonFullParameters: with rank0_only the other ranks have nothing to "
        "write back; set writeback to false");
  }
  std::unique_ptr<SummonFullParameters> scope(
      new SummonFullParameters(options));
  const std::set<const nn::Parameter*> wanted = Wanted(module, options);
  const std::vector<FsdpState*> states = OwnersOf(wanted, module);
  for (const FsdpState* state : states) {
    CH_RETURN_IF_ERROR(state->CheckWritable("SummonFullParameters"));
  }
  const NoGrad no_grad;
  for (const nn::NamedParameter& named : module.NamedParameters()) {
    nn::Parameter* const p = named.parameter;
    if (wanted.count(p) == 0) continue;
    if (!LocalTensor(p->data()).storage()->attached()) {
      return absl::FailedPreconditionError(
          absl::StrCat("SummonFullParameters: ", named.name,
                       " has no memory yet; call Module::Materialize"));
    }
    Entry& entry = scope->entries_.emplace_back(
        Entry{.parameter = p->shared_from_this(), .name = named.name});
    entry.full = WholeOf(p->data(), options);
    if (options.with_grads && p->grad().defined()) {
      entry.grad = WholeOf(p->grad(), options);
    }
  }
  CH_RETURN_IF_ERROR(RankContext::Current().status());
  for (FsdpState* state : states) {
    state->iteration().summoned = true;
    scope->states_.push_back(state->ref());
  }
  return scope;
}

SummonFullParameters::~SummonFullParameters() {
  const absl::Status status = End();
  if (!status.ok()) RankContext::Current().Poison(status);
}

const SummonFullParameters::Entry* SummonFullParameters::Find(
    absl::string_view name) const {
  for (const Entry& entry : entries_) {
    if (entry.name == name) return &entry;
  }
  return nullptr;
}

absl::Status SummonFullParameters::End() {
  if (std::exchange(ended_, true)) return absl::OkStatus();
  for (const std::shared_ptr<const FsdpStateRef>& ref : states_) {
    if (ref->state != nullptr) ref->state->iteration().summoned = false;
  }
  const std::vector<Entry> entries = std::exchange(entries_, {});
  CH_RETURN_IF_ERROR(RankContext::Current().status());
  if (!options_.writeback) return absl::OkStatus();
  const NoGrad no_grad;
  for (const Entry& entry : entries) {
    TakeShard(entry.parameter->data(), entry.full);
    // Gradients that were dropped during the scope stay dropped.
    if (entry.grad.defined() && entry.parameter->grad().defined()) {
      TakeShard(entry.parameter->grad(), entry.grad);
    }
  }
  return absl::OkStatus();
}

}  // namespace crosshatch::fsdp
