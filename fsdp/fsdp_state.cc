// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/fsdp/fsdp_state.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/base/check.h"
#include "crosshatch/nn/module_root.h"
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

// Adds the states of `modules`, each once.
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

// The parameters that the backward needs are gone, and so are their gradients.
void PoisonAsGone(const std::string& name) {
  RankContext::Current().Poison(absl::FailedPreconditionError(absl::StrCat(
      "FSDP: a backward through ", name,
      ", whose module is gone; keep the model until Backward has returned")));
}

}  // namespace

FsdpState& FsdpLife::Check(const char* what) const {
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
  std::set<const nn::Module*> left_out;
  std::vector<nn::NamedModule> modules;
  for (const nn::NamedModule& named : module.NamedModules()) {
    if (left_out.count(named.module) != 0) continue;
    if (IsReplicated(*named.module)) {
      for (const nn::NamedModule& below : named.module->NamedModules()) {
        left_out.insert(below.module);
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

std::vector<FsdpState*> FsdpState::AllAround(nn::Module& module) {
  return AllBelow({&nn::RootOf(module)});
}

FsdpState::FsdpState(std::vector<nn::Module*> modules, DeviceMesh mesh,
                     FullyShardOptions options,
                     std::vector<std::unique_ptr<ParamGroup>> groups,
                     LeftOut left_out, bool replicated)
    : modules_(std::move(modules)),
      mesh_(std::move(mesh)),
      options_(std::move(options)),
      groups_(std::move(groups)),
      left_out_(std::move(left_out)),
      replicated_(replicated),
      life_(std::make_shared<FsdpLife>(FsdpLife{this, Name()})) {
  settings_ = {.reshard_after_forward = options_.reshard_after_forward,
               .gradient_divide_factor = options_.gradient_divide_factor,
               .force_sum_reduction = options_.force_sum_reduction,
               .forward_prefetch = options_.forward_prefetch,
               .backward_prefetch = options_.backward_prefetch,
               .prefetch_bytes = options_.prefetch_bytes};
  if (options_.post_forward_mesh_size > 0) {
    settings_.reshard_after_forward = options_.post_forward_mesh_size > 1;
  }
  for (const std::unique_ptr<ParamGroup>& group : groups_) {
    group->gradients().set_on_complete([this, g = group.get()] {
      Tell(ModuleEvent::kGroupIsComplete, g);
      CheckComplete();
    });
  }
}

FsdpState::~FsdpState() {
  life_->state = nullptr;
  if (events_ != nullptr) events_->Went(*this);
}

void FsdpState::Tell(ModuleEvent event, ParamGroup* group) {
  // Without a tree its backward has failed already.
  if (events_ != nullptr) events_->Happened(*this, event, group);
}

absl::Status FsdpState::CheckReadable(const char* what) const {
  return CheckAtRest(what, /*gathered_too=*/false);
}

absl::Status FsdpState::CheckWritable(const char* what) const {
  return CheckAtRest(what, /*gathered_too=*/true);
}

absl::Status FsdpState::CheckAtRest(const char* what, bool gathered_too) const {
  if (iteration_.summoned) {
    return absl::FailedPreconditionError(
        absl::StrCat(what, ": the parameters of ", Name(),
                     " are summoned already; end SummonFullParameters before"));
  }
  for (const auto& group : groups_) {
    if (gathered_too && group->state() != ParamState::kSharded) {
      return absl::FailedPreconditionError(
          absl::StrCat(what, ": the group ", group->name(), " is ",
                       fsdp::Name(group->state()),
                       "; finish the backward or call ShardedModule::Reshard"));
    }
    if (group->gradients().unfinished()) {
      return absl::FailedPreconditionError(absl::StrCat(
          what, ": the group ", group->name(),
          " has gradients that are not reduced yet; finish the accumulation, "
          "or leave it by ShardedModule::ResetIteration"));
    }
  }
  return absl::OkStatus();
}

std::string FsdpState::Name() const {
  const nn::Module& first = *modules_.front();
  const std::string name = first.FullName();
  return name.empty() ? first.type_name() : name;
}

void FsdpState::Join(std::shared_ptr<ModuleEvents> events,
                     std::shared_ptr<CommContext> comm,
                     const DeviceMesh& batch_mesh) {
  events_ = std::move(events);
  comm_ = std::move(comm);
  life_->name = Name();
  for (const auto& group : groups_) {
    group->set_comm_context(comm_);
    group->SplitsBatchOf(batch_mesh);
  }
}

void FsdpState::Unshard() {
  for (const auto& group : groups_) group->Unshard();
}

void FsdpState::WaitForUnshard() {
  for (const auto& group : groups_) group->WaitForUnshard();
}

void FsdpState::Reshard() {
  const ModuleTransition transition =
      Advance(ModuleEvent::kReshardIsAskedFor, Facts(/*as_root=*/false));
  // None of them is for the tree to do.
  for (const ModuleAction action : transition.actions) {
    Do(action, /*group=*/nullptr, /*inputs=*/nullptr);
  }
}

int64_t FsdpState::BytesToGather() const {
  int64_t bytes = 0;
  for (const auto& group : groups_) {
    const bool gathered = group->state() == ParamState::kGathering ||
                          group->state() == ParamState::kGathered;
    if (!gathered) bytes += group->gathered_bytes();
  }
  return bytes;
}

int64_t FsdpState::BytesGathering() const {
  int64_t bytes = 0;
  for (const auto& group : groups_) {
    if (group->state() == ParamState::kGathering) {
      bytes += group->gathered_bytes();
    }
  }
  return bytes;
}

void FsdpState::FollowTrainability() {
  for (const auto& group : groups_) group->gradients().FollowTrainability();
}

bool FsdpState::reshard_after_forward(bool as_root) const {
  return settings_.reshard_after_forward.value_or(!as_root);
}

ModuleFacts FsdpState::Facts(bool as_root) const {
  return {.is_root = as_root,
          .reshards_after_forward = reshard_after_forward(as_root),
          .reshards_after_backward = settings_.reshard_after_backward,
          .unshards_in_backward = settings_.unshard_in_backward,
          .ranks_may_differ = reduce_unused()};
}

ModuleTransition FsdpState::Advance(ModuleEvent event,
                                    const ModuleFacts& facts) {
  ModuleTransition transition = Transition(iteration_, event, facts);
  // Now: what is done may come back with events of its own.
  iteration_ = transition.next;
  return transition;
}

void FsdpState::Do(ModuleAction action, ParamGroup* group,
                   const TensorList* inputs) {
  switch (action) {
    case ModuleAction::kBeginForwardInTree:
    case ModuleAction::kBeginForwardOfRootInTree:
    case ModuleAction::kEndForwardInTree:
    case ModuleAction::kBeginBackwardInTree:
    case ModuleAction::kRecordForward:
    case ModuleAction::kPrefetchForward:
    case ModuleAction::kPrefetchBackward:
      CH_CHECK(false) << "FSDP: to " << fsdp::Name(action)
                      << " is for the tree to do, not for " << Name();
      return;
    case ModuleAction::kFollowTrainability:
      return FollowTrainability();
    case ModuleAction::kUnshard:
      return Unshard();
    case ModuleAction::kWait:
      return WaitForUnshard();
    case ModuleAction::kReshard:
      for (const auto& each : groups_) each->Reshard();
      return;
    case ModuleAction::kReshardAfterForward:
      for (const auto& each : groups_) each->ReshardAfterForward();
      return;
    case ModuleAction::kWatchInputs:
      return WatchInputs(*inputs);
    case ModuleAction::kReduceGroup:
      return group->gradients().Reduce(settings_);
    case ModuleAction::kUnshardGroup:
      group->Unshard();
      return group->WaitForUnshard();
    case ModuleAction::kReshardGroup:
      return group->Reshard();
    case ModuleAction::kEndGroup:
      return group->gradients().EndBackward();
    case ModuleAction::kResetGroup:
      return group->gradients().Reset();
    case ModuleAction::kBeginForwardSpan:
      return BeginSpan(comm_->compute(), "forward", life_->name);
    case ModuleAction::kEndForwardSpan:
      return EndSpan(comm_->compute(), "forward", life_->name);
    case ModuleAction::kBeginBackwardSpan:
      return BeginSpan(comm_->compute(), "backward", life_->name);
    case ModuleAction::kEndBackwardSpan:
      return EndSpan(comm_->compute(), "backward", life_->name);
  }
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

void FsdpState::WatchInputs(const TensorList& inputs) {
  run_ = std::make_shared<Run>();
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
    node->AddPreHook([life = life_, run = run_] {
      if (life->state != nullptr) life->state->InputGradientsReady(run);
    });
  }
  run_->inputs = static_cast<int>(seen.size());
}

bool FsdpState::WatchOutputs(const TensorList& outputs) {
  const std::shared_ptr<Run> run = std::exchange(run_, nullptr);
  bool backward_follows = false;
  for (const Tensor& output : outputs) {
    if (!output.defined() || !output.requires_grad()) continue;
    backward_follows = true;
    GradEdge(output).node->AddPreHook([life = life_, run] {
      if (life->state != nullptr) {
        life->state->OutputGradientsReady(run);
      } else {
        PoisonAsGone(life->name);
      }
    });
  }
  return backward_follows;
}

void FsdpState::OutputGradientsReady(const std::shared_ptr<Run>& run) {
  if (events_ == nullptr) {
    PoisonAsGone(absl::StrCat("the root of the tree of ", life_->name));
    return;
  }
  const bool is_open =
      std::find(open_runs_.begin(), open_runs_.end(), run) != open_runs_.end();
  if (run->inputs > 0 && !is_open) {
    run->inputs_due = run->inputs;
    open_runs_.push_back(run);
  }
  Tell(ModuleEvent::kBackwardBegins);
}

void FsdpState::BeginRecomputation(nn::Module& module) {
  const std::vector<nn::Parameter*> needed = module.Parameters();
  for (const auto& group : groups_) {
    if (group->state() == ParamState::kGathered) continue;
    for (const nn::Parameter* p : group->parameters()) {
      if (std::find(needed.begin(), needed.end(), p) == needed.end()) continue;
      Tell(ModuleEvent::kGroupIsNeededAgain, group.get());
      break;
    }
  }
}

void FsdpState::InputGradientsReady(const std::shared_ptr<Run>& run) {
  const auto found = std::find(open_runs_.begin(), open_runs_.end(), run);
  if (found == open_runs_.end() || --run->inputs_due > 0) return;
  open_runs_.erase(found);
  CheckComplete();
}

void FsdpState::CheckComplete() {
  if (!open_runs_.empty()) return;
  for (const auto& group : groups_) {
    if (group->gradients().trainable() && !group->gradients().complete()) {
      return;
    }
  }
  Tell(ModuleEvent::kBackwardIsComplete);
}

bool FsdpState::PassesGradients() const {
  const bool has_frozen =
      std::any_of(groups_.begin(), groups_.end(),
                  [](const auto& g) { return !g->gradients().trains_all(); });
  if (!has_frozen) return false;
  // Replicated ones too, though they are trees of their own.
  for (const FsdpState* state : AllBelow(modules_)) {
    for (const auto& group : state->groups_) {
      const GroupGradients& gradients = group->gradients();
      if (gradients.trainable() && !gradients.complete()) return true;
    }
  }
  return false;
}

void FsdpState::StopWatching() { open_runs_.clear(); }

bool FsdpState::took_part() const {
  for (const auto& group : groups_) {
    if (group->gradients().took_part()) return true;
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
  for (const nn::Parameter* parameter : left_out_.tied) {
    absl::StrAppend(&text, "  (", parameter->name(),
                    ": tied, in the group of the lowest common ancestor)\n");
  }
  for (const auto& parameter : left_out_.ignored) {
    absl::StrAppend(&text, "  (", parameter->name(), ": ignored)\n");
  }
  return text;
}

}  // namespace crosshatch::fsdp
