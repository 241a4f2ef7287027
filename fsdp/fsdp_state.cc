// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/fsdp/fsdp_state.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/base/check.h"
#include "crosshatch/fsdp/fsdp_tree.h"
#include "crosshatch/nn/module.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/ops/cast.h"
#include "crosshatch/tensor/rank_context.h"
#include "crosshatch/tensor/span.h"

namespace crosshatch::fsdp {
namespace {

void CastFloats(TensorList& tensors, DType dtype) {
  for (Tensor& tensor : tensors) {
    if (tensor.defined() && IsFloatingPoint(tensor.dtype()) &&
        tensor.dtype() != dtype) {
      tensor = ToDType(tensor, dtype);
    }
  }
}

void AddStates(const std::vector<nn::NamedModule>& modules,
               std::vector<FsdpState*>& states) {
  for (const nn::NamedModule& named : modules) {
    FsdpState* const state = FsdpState::Of(*named.module);
    if (state == nullptr) continue;
    if (std::find(states.begin(), states.end(), state) == states.end()) {
      states.push_back(state);
    }
  }
}

std::optional<FsdpState::Refs> RefsTo(
    const std::optional<std::vector<nn::Module*>>& modules) {
  if (!modules.has_value()) return std::nullopt;
  FsdpState::Refs refs;
  for (const nn::Module* module : *modules) {
    refs.push_back(FsdpState::Of(*module)->ref());
  }
  return refs;
}

}  // namespace

FsdpState& FsdpStateRef::Check(const char* what) const {
  CH_CHECK(state != nullptr)
      << what << " of " << name << ", whose module is gone; keep the model";
  return *state;
}

FsdpState* FsdpState::Of(const nn::Module& module) {
  return static_cast<FsdpState*>(module.attachment(kKey));
}

bool FsdpState::IsReplicated(const nn::Module& module) {
  const FsdpState* const state = Of(module);
  return state != nullptr && state->replicated_;
}

std::vector<nn::NamedModule> FsdpState::ModulesOf(nn::Module& module) {
  if (IsReplicated(module)) return {{"", &module}};
  std::set<const nn::Module*> omitted;
  std::vector<nn::NamedModule> modules;
  for (const nn::NamedModule& named : module.NamedModules()) {
    if (omitted.count(named.module) != 0) continue;
    if (IsReplicated(*named.module)) {
      for (const nn::NamedModule& below : named.module->NamedModules()) {
        omitted.insert(below.module);
      }
    } else {
      modules.push_back(named);
    }
  }
  return modules;
}

std::vector<FsdpState*> FsdpState::Below(
    absl::Span<nn::Module* const> modules) {
  std::vector<FsdpState*> states;
  for (nn::Module* module : modules) AddStates(ModulesOf(*module), states);
  return states;
}

std::vector<FsdpState*> FsdpState::AllBelow(
    absl::Span<nn::Module* const> modules) {
  std::vector<FsdpState*> states;
  for (nn::Module* module : modules) AddStates(module->NamedModules(), states);
  return states;
}

std::vector<FsdpState*> FsdpState::AllInModuleTree(nn::Module& module) {
  return AllBelow({&nn::RootOf(module)});
}

FsdpState::FsdpState(std::vector<nn::Module*> modules, DeviceMesh mesh,
                     FullyShardOptions options,
                     std::vector<std::unique_ptr<ParamGroup>> groups,
                     OmittedParameters omitted, bool replicated)
    : modules_(std::move(modules)),
      mesh_(std::move(mesh)),
      options_(std::move(options)),
      groups_(std::move(groups)),
      omitted_(std::move(omitted)),
      replicated_(replicated),
      ref_(std::make_shared<FsdpStateRef>(FsdpStateRef{this, Name()})) {
  settings_ = {.reshard_after_forward = options_.reshard_after_forward,
               .reduction = options_.reduction,
               .prefetch = options_.prefetch};
  if (options_.post_forward_mesh_size > 0) {
    settings_.reshard_after_forward = options_.post_forward_mesh_size > 1;
  }
}

Settings FsdpState::LiveSettings() const {
  Settings settings = settings_;
  const auto keep_living = [](std::optional<std::vector<nn::Module*>>& modules,
                              const std::optional<Refs>& refs) {
    if (!modules.has_value()) return;
    size_t i = 0;
    modules->erase(std::remove_if(modules->begin(), modules->end(),
                                  [&](const nn::Module*) {
                                    return (*refs)[i++]->state == nullptr;
                                  }),
                   modules->end());
  };
  keep_living(settings.forward_prefetch_modules, forward_prefetch_);
  keep_living(settings.backward_prefetch_modules, backward_prefetch_);
  return settings;
}

void FsdpState::set_settings(Settings settings) {
  forward_prefetch_ = RefsTo(settings.forward_prefetch_modules);
  backward_prefetch_ = RefsTo(settings.backward_prefetch_modules);
  for (const auto& group : groups_) {
    if (settings.keep_unsharded != settings_.keep_unsharded) {
      group->set_keep_unsharded(settings.keep_unsharded);
    }
    if (settings.custom_comm != settings_.custom_comm) {
      group->set_custom_comm(settings.custom_comm != nullptr
                                 ? settings.custom_comm
                                 : std::make_shared<const CustomComm>());
    }
  }
  settings_ = std::move(settings);
}

FsdpState::~FsdpState() {
  ref_->state = nullptr;
  if (tree_ != nullptr) tree_->Remove(*this);
}

absl::Status FsdpState::CheckReadable(const char* what) const {
  return CheckAtRest(what, /*unsharded_too=*/false);
}

absl::Status FsdpState::CheckWritable(const char* what) const {
  return CheckAtRest(what, /*unsharded_too=*/true);
}

absl::Status FsdpState::CheckAtRest(const char* what,
                                    bool unsharded_too) const {
  if (iteration_.summoned) {
    return absl::FailedPreconditionError(absl::StrCat(
        what, ": the parameters of ", Name(),
        " are summoned already; destroy the other SummonFullParameters first"));
  }
  for (const auto& group : groups_) {
    if (unsharded_too && group->state() != ParamState::kSharded) {
      return absl::FailedPreconditionError(
          absl::StrCat(what, ": the group ", group->name(), " is ",
                       fsdp::Name(group->state()),
                       "; finish the backward or call ShardedModule::Reshard"));
    }
    if (group->gradients().unfinished()) {
      return absl::FailedPreconditionError(absl::StrCat(
          what, ": the group ", group->name(),
          " has gradients that are not reduced yet; finish the accumulation, "
          "or discard it with ShardedModule::ResetIteration"));
    }
  }
  return absl::OkStatus();
}

std::string FsdpState::Name() const {
  const nn::Module& first = *modules_.front();
  const std::string name = first.FullName();
  return name.empty() ? first.type_name() : name;
}

void FsdpState::Join(std::shared_ptr<FsdpTree> tree,
                     std::shared_ptr<CommContext> comm,
                     const DeviceMesh& batch_mesh) {
  tree_ = std::move(tree);
  comm_ = std::move(comm);
  ref_->name = Name();
  for (const auto& group : groups_) {
    group->set_comm_context(comm_);
    group->set_batch_mesh(batch_mesh);
  }
}

void FsdpState::Unshard() {
  for (const auto& group : groups_) group->Unshard();
}

void FsdpState::WaitForUnshard() {
  for (const auto& group : groups_) group->WaitForUnshard();
}

void FsdpState::Reshard() {
  iteration_.prefetched = Prefetched::kNo;
  for (const auto& group : groups_) group->Reshard();
}

void FsdpState::ReshardAfterForward() {
  for (const auto& group : groups_) group->ReshardAfterForward();
}

void FsdpState::Prefetch(Prefetched reason) {
  if (BytesToUnshard() > 0 || reduce_unused()) iteration_.prefetched = reason;
  Unshard();
}

void FsdpState::AfterOutermostForward() {
  const bool waits_for_more = std::exchange(iteration_.in_forward, false);
  if (waits_for_more || iteration_.prefetched == Prefetched::kForForward) {
    Reshard();
  }
}

int64_t FsdpState::BytesToUnshard() const {
  int64_t bytes = 0;
  for (const auto& group : groups_) {
    const bool gathered = group->state() == ParamState::kUnsharding ||
                          group->state() == ParamState::kUnsharded;
    if (!gathered) bytes += group->unsharded_bytes();
  }
  return bytes;
}

int64_t FsdpState::BytesUnsharding() const {
  int64_t bytes = 0;
  for (const auto& group : groups_) {
    if (group->state() == ParamState::kUnsharding) {
      bytes += group->unsharded_bytes();
    }
  }
  return bytes;
}

void FsdpState::CastInputs(TensorList& inputs) const {
  const MixedPrecisionPolicy& precision = options_.mixed_precision;
  if (precision.cast_forward_inputs && precision.param_dtype.has_value()) {
    CastFloats(inputs, *precision.param_dtype);
  }
}

void FsdpState::CastOutputs(TensorList& outputs) const {
  CastFloats(outputs, *options_.mixed_precision.output_dtype);
}

void FsdpState::ObserveInputs(const TensorList& inputs) {
  forward_ = std::make_shared<ObservedForward>();
  const bool all_trained =
      std::all_of(groups_.begin(), groups_.end(),
                  [](const auto& g) { return g->gradients().trains_all(); });
  if (all_trained || !RankContext::Current().grad_enabled()) return;
  std::vector<const Node*> seen;
  for (const Tensor& input : inputs) {
    if (!input.defined() || !input.requires_grad()) continue;
    const std::shared_ptr<Node> node = GradEdge(input).node;
    if (std::find(seen.begin(), seen.end(), node.get()) != seen.end()) continue;
    seen.push_back(node.get());
    node->AddPreHook([ref = ref_, forward = forward_] {
      if (ref->state != nullptr) ref->state->InputGradientsComplete(forward);
    });
  }
  forward_->inputs = static_cast<int>(seen.size());
}

void FsdpState::BeginBackward(const std::shared_ptr<ObservedForward>& forward) {
  if (forward->inputs == 0 ||
      std::find(forwards_in_backward_.begin(), forwards_in_backward_.end(),
                forward) != forwards_in_backward_.end()) {
    return;
  }
  forward->inputs_awaited = forward->inputs;
  forwards_in_backward_.push_back(forward);
}

void FsdpState::BeginRecomputation(nn::Module& module) {
  // Without a tree, the backward has failed before.
  if (tree_ == nullptr) return;
  const std::vector<nn::Parameter*> needed = module.Parameters();
  for (const auto& group : groups_) {
    if (group->state() == ParamState::kUnsharded) continue;
    for (const nn::Parameter* p : group->parameters()) {
      if (std::find(needed.begin(), needed.end(), p) == needed.end()) continue;
      // The group may be freed again already: the gradient of a bias, for
      // example, needs nothing that forward saved, so it can be complete before
      // the recomputation.
      group->Unshard();
      group->WaitForUnshard();
      break;
    }
  }
}

void FsdpState::InputGradientsComplete(
    const std::shared_ptr<ObservedForward>& forward) {
  const auto found = std::find(forwards_in_backward_.begin(),
                               forwards_in_backward_.end(), forward);
  if (found == forwards_in_backward_.end() || --forward->inputs_awaited > 0)
    return;
  forwards_in_backward_.erase(found);
  if (tree_ != nullptr) CheckBackwardComplete();
}

void FsdpState::CheckBackwardComplete() {
  if (!forwards_in_backward_.empty() || !settings_.reshard_after_backward)
    return;
  for (const auto& group : groups_) {
    if (group->gradients().trainable() && !group->gradients().complete()) {
      return;
    }
  }
  if (!reduce_unused() && !PassesGradients()) Reshard();
  EndBackwardSpan();
}

bool FsdpState::PassesGradients() const {
  const bool has_frozen =
      std::any_of(groups_.begin(), groups_.end(),
                  [](const auto& g) { return !g->gradients().trains_all(); });
  if (!has_frozen) return false;
  // Includes replicated modules, though they form trees of their own.
  for (const FsdpState* state : AllBelow(modules_)) {
    for (const auto& group : state->groups_) {
      const GroupGradients& gradients = group->gradients();
      if (gradients.trainable() && !gradients.complete()) return true;
    }
  }
  return false;
}

void FsdpState::BeginBackwardSpan() {
  iteration_.computes_backward = true;
  BeginSpan(comm_->compute(), "backward", ref_->name);
}

void FsdpState::EndBackwardSpan() {
  if (!std::exchange(iteration_.computes_backward, false)) return;
  EndSpan(comm_->compute(), "backward", ref_->name);
}

void FsdpState::AfterBackward(const Settings& tree) {
  // Parameters prefetched for the next backward stay unsharded for it.
  const bool keeps = iteration_.prefetched == Prefetched::kForBackward &&
                     !tree.is_last_backward;
  for (const auto& group : groups_) {
    if (!tree.manual_finalization) group->gradients().Reduce(settings_);
    if (settings_.reshard_after_backward && !keeps) group->Reshard();
    group->gradients().EndBackward();
  }
  forwards_in_backward_.clear();
  EndBackwardSpan();
  iteration_.in_backward = iteration_.in_forward = false;
  if (!keeps) iteration_.prefetched = Prefetched::kNo;
}

void FsdpState::Reset() {
  for (const auto& group : groups_) {
    group->gradients().Reset();
    group->Reshard();
  }
  forwards_in_backward_.clear();
  EndBackwardSpan();
  iteration_ = {.summoned = iteration_.summoned};
}

bool FsdpState::has_reduced() const {
  for (const auto& group : groups_) {
    if (group->gradients().has_reduced()) return true;
  }
  return false;
}

void FsdpState::EndReductions(bool reports) {
  for (const auto& group : groups_) {
    group->gradients().EndReductions(settings_, reports);
  }
}

void FsdpState::Finish() {
  for (const auto& group : groups_) group->gradients().Finish();
}

std::string FsdpState::ZeroStage(bool as_root) const {
  if (replicated_) return "DDP";
  if (reshard_after_forward(as_root)) {
    const int size = options_.post_forward_mesh_size;
    return size > 1 ? absl::StrCat("ZeRO-3, between forward and backward ",
                                   "gathered from ", size, " ranks")
                    : "ZeRO-3";
  }
  return settings_.reshard_after_backward
             ? "ZeRO-2, gathered from forward to the end of backward"
             : "ZeRO-1, gathered until resharded";
}

std::string FsdpState::Describe(bool as_root, PlanDetail detail) const {
  std::string text;
  for (const auto& group : groups_) {
    absl::StrAppend(&text, group->Describe(ZeroStage(as_root), detail));
  }
  for (const nn::Parameter* parameter : omitted_.tied) {
    absl::StrAppend(&text, "  (", parameter->name(),
                    ": tied, in the group of the lowest common ancestor)\n");
  }
  for (const auto& parameter : omitted_.ignored) {
    absl::StrAppend(&text, "  (", parameter->name(), ": ignored)\n");
  }
  return text;
}

}  // namespace crosshatch::fsdp
