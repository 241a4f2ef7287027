// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/fsdp/fsdp_tree.h"

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "crosshatch/base/check.h"
#include "crosshatch/dtensor/verify.h"
#include "crosshatch/fsdp/batch_split.h"
#include "crosshatch/fsdp/param_group.h"
#include "crosshatch/nn/batch_rows.h"
#include "crosshatch/nn/distribute_module.h"
#include "crosshatch/nn/module.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/rank_context.h"
#include "crosshatch/tensor/recompute.h"
#include "crosshatch/tensor/span.h"

namespace crosshatch::fsdp {
namespace {

// Returns the states of `refs` that exist and belong to a tree. Modules
// without a tree have not run yet and have no streams to gather on.
std::vector<FsdpState*> StatesOf(const FsdpState::Refs& refs) {
  std::vector<FsdpState*> states;
  for (const std::shared_ptr<const FsdpStateRef>& ref : refs) {
    FsdpState* const state = ref->state;
    if (state != nullptr && state->tree() != nullptr) states.push_back(state);
  }
  return states;
}

// Removes `state` from its tree. Waits for reductions first: a backward that
// issued them would not reach the state at its end.
void Leave(FsdpState& state) {
  if (state.tree() == nullptr) return;
  // Keeps the tree alive: `state` may hold the last reference.
  const std::shared_ptr<FsdpTree> tree = state.tree()->shared_from_this();
  tree->Finish();
  tree->Remove(state);
}

// Poisons the rank because the parameters that the backward needs are
// destroyed.
void PoisonAsDestroyed(const std::string& name) {
  RankContext::Current().Poison(absl::FailedPreconditionError(absl::StrCat(
      "FSDP: a backward through ", name,
      ", whose module is gone; keep the model until Backward has returned")));
}

}  // namespace

// Receives the gradient of one unsharded parameter. The destination is a view
// of the group's full gradients.
class FsdpTree::GradientSink final : public GradSink {
 public:
  GradientSink(FsdpState& state, ParamGroup& group, size_t index)
      : state_(state), group_(group), index_(index) {}

  GradDestination Acquire() override {
    return group_.gradients().Acquire(index_);
  }

  void Complete() override {
    if (!group_.gradients().Complete(index_)) return;
    // Without a tree, the backward has failed before.
    if (state_.tree() == nullptr) return;
    state_.tree()->GradientsComplete(state_, group_);
  }

  std::string WhyNoCreateGraph() const override {
    return absl::StrCat(
        "FSDP: gradients of gradients (BackwardOptions::create_graph) through ",
        group_.parameters()[index_]->name(),
        ", which is sharded: its gathered memory is freed after the first "
        "backward; compute them on a model that is not sharded, or list the "
        "parameter in FullyShardOptions::ignored_params");
  }

 private:
  FsdpState& state_;
  ParamGroup& group_;
  const size_t index_;
};

FsdpTree& FsdpTree::Of(FsdpState& state) {
  if (state.tree() == nullptr) Form(state);
  return *state.tree();
}

void FsdpTree::SyncRequiresGrad(FsdpState& state) {
  for (const auto& group : state.groups()) {
    group->gradients().SyncRequiresGrad(
        [&](size_t i) -> std::shared_ptr<GradSink> {
          return std::make_shared<GradientSink>(state, *group, i);
        });
  }
}

void FsdpTree::Hook(FsdpState& state) {
  SyncRequiresGrad(state);
  for (nn::Module* module : state.modules()) {
    module->AddPreHook(
        [&state](nn::Module&, TensorList& inputs) {
          Of(state).BeforeForward(state, inputs);
        },
        /*first=*/true);
    module->AddPostHook([&state, last = module == state.modules().back()](
                            nn::Module&, TensorSpan, TensorList& outputs) {
      Of(state).AfterForward(state, outputs, last);
    });
  }
}

void FsdpTree::Form(FsdpState& root, std::shared_ptr<CommContext> comm) {
  std::shared_ptr<FsdpTree> tree(new FsdpTree);
  tree->comm_ = comm != nullptr ? std::move(comm)
                                : std::make_shared<CommContext>(
                                      RankContext::Current(),
                                      root.settings().reduction.buffers);
  tree->states_ = FsdpState::Below(root.modules());
  tree->expected_order_ = tree->states_;
  tree->CheckAllSharded();
  for (FsdpState* state : tree->states_) {
    Leave(*state);
    state->Join(tree, tree->comm_, root.mesh());
  }
}

void FsdpTree::Remove(const FsdpState& state) {
  const bool is_root = !states_.empty() && states_.front() == &state;
  // Modules below may be destroyed with the state's module.
  seen_.clear();
  for (std::vector<FsdpState*>* states :
       {&states_, &expected_order_, &forward_order_, &begin_order_}) {
    states->erase(std::remove(states->begin(), states->end(), &state),
                  states->end());
  }
  // The next forward looks up its position again.
  position_ = std::min(position_, expected_order_.size());
  if (!is_root) return;
  // The tree no longer calls these states, and some outlive it. So wait for
  // their reductions now.
  for (FsdpState* orphan : states_) {
    orphan->Finish();
    orphan->Leave();
  }
  for (std::vector<FsdpState*>* states :
       {&states_, &expected_order_, &forward_order_, &begin_order_}) {
    states->clear();
  }
  position_ = 0;
}

void FsdpTree::CheckAllSharded() {
  seen_.clear();
  std::vector<nn::NamedModule> modules;
  for (nn::Module* root : states_.front()->modules()) {
    for (const nn::NamedModule& named : root->NamedModules()) {
      modules.push_back(named);
      seen_.push_back({named.module, named.module->own_parameters().size(),
                       named.module->children().size()});
    }
  }
  std::set<const nn::Parameter*> omitted;
  // A parameter may be ignored by an ancestor, because a replicated module is
  // the root of its own tree.
  for (const FsdpState* state :
       FsdpState::AllInModuleTree(*states_.front()->modules().front())) {
    for (const auto& p : state->omitted().ignored) omitted.insert(p.get());
  }
  for (const nn::NamedModule& named : modules) {
    const FsdpState* const state = FsdpState::Of(*named.module);
    if (state == nullptr) continue;
    for (const nn::Parameter* p : state->omitted().tied) {
      CH_CHECK(p->gathered().defined() || omitted.count(p) != 0)
          << "FSDP: parameter " << p->name()
          << " is tied between modules that are sharded separately, and no "
             "sharded module contains them all; call FullyShard on their "
             "common ancestor too";
    }
  }
  for (const nn::NamedModule& named : modules) {
    for (const auto& [name, parameter] : named.module->own_parameters()) {
      if (omitted.count(parameter.get()) != 0) continue;
      CH_CHECK(parameter->gathered().defined())
          << "FSDP: parameter " << named.module->FullName()
          << (named.module->parent() == nullptr ? "" : ".") << name
          << " was registered after FullyShard: it would be neither sharded "
             "nor reduced; register it before, or list it in "
             "FullyShardOptions::ignored_params";
    }
  }
}

void FsdpTree::CheckNoUnreducedGradients() {
  RankContext& context = RankContext::Current();
  const DeviceMesh& mesh = states_.front()->mesh();
  nn::Module* const here = states_.front()->modules().front();
  if (here->parent() == nullptr || mesh.size() == 1 || context.poisoned()) {
    return;
  }
  std::set<const nn::Parameter*> ignored;
  for (const FsdpState* state : FsdpState::AllInModuleTree(*here)) {
    for (const auto& p : state->omitted().ignored) ignored.insert(p.get());
  }
  std::vector<std::string> rest;
  for (const auto& [name, parameter] : nn::RootOf(*here).NamedParameters()) {
    // A parameter that is distributed over these ranks has its own reduction.
    const Tensor& data = parameter->data();
    const bool is_reduced = parameter->gathered().defined() ||
                            nn::IsDistributedOver(data, mesh.layout());
    if (is_reduced || ignored.count(parameter) != 0) continue;
    if (parameter->grad().defined()) rest.push_back(name);
  }
  if (rest.empty()) return;
  constexpr size_t kMaxNames = 8;
  const size_t named = std::min(rest.size(), kMaxNames);
  context.Poison(absl::FailedPreconditionError(absl::StrCat(
      "FSDP: ", absl::StrJoin(rest.begin(), rest.begin() + named, ", "),
      named < rest.size() ? absl::StrCat(" and ", rest.size() - named, " more")
                          : "",
      " would be trained separately on each rank of ", mesh.ToString(),
      ": no FullyShard contains them, so their gradients are those of this "
      "rank's part of the batch; call FullyShard on the whole model too, after "
      "its blocks, or, if intended, list them in its "
      "FullyShardOptions::ignored_params")));
}

bool FsdpTree::IsUnchanged() const {
  for (const Seen& seen : seen_) {
    if (seen.module->own_parameters().size() != seen.parameters ||
        seen.module->children().size() != seen.children) {
      return false;
    }
  }
  return true;
}

void FsdpTree::OrderAllGathers() {
  const Event shards_are_there =
      post_optimizer_.has_value()
          ? *std::exchange(post_optimizer_, std::nullopt)
          : comm_->compute().Record();
  comm_->all_gather().Wait(shards_are_there);
  bool offloaded = false;
  bool on_compute = false;
  for (const FsdpState* state : states_) {
    for (const auto& group : state->groups()) {
      group->MarkShardsOrdered();
      group->BeginForward();
      on_compute = on_compute || group->stays_on_compute();
    }
    offloaded = offloaded || state->options().cpu_offload;
  }
  if (on_compute) comm_->compute().Wait(shards_are_there);
  if (offloaded) comm_->to_device().Wait(shards_are_there);
}

void FsdpTree::CompareBuffers() {
  RankContext& context = RankContext::Current();
  if (context.poisoned()) return;
  const FsdpState& root = *states_.front();
  for (nn::Module* module : root.modules()) {
    absl::Status status = nn::CheckBuffers(*module, root.mesh());
    if (!status.ok()) return context.Poison(std::move(status));
  }
}

void FsdpTree::BeginBatchSplit(const FsdpState& state, TensorSpan inputs) {
  if (!state.splits_batch()) return;
  // A scope of the caller takes precedence.
  if (nn::BatchRowsScope::Current() != nullptr) return;
  if (const auto randomness = RowRandomness(state.modules())) {
    batch_split_.Begin(state.mesh(), *state.modules().front(), state.Name(),
                       inputs, *randomness);
  }
}

void FsdpTree::BeginForward(const FsdpState& state, TensorSpan inputs,
                            bool begins_order) {
  // The outermost forward may follow an optimizer's step, whichever module of
  // the tree it is of.
  const bool outermost = ++forwards_ == 1;
  if (outermost) BeginBatchSplit(state, inputs);
  if (begins_order && (!has_compared_buffers_ || ComparesReplicas())) {
    has_compared_buffers_ = true;
    CompareBuffers();
  }
  if (outermost) {
    if (!IsUnchanged()) CheckAllSharded();
    OrderAllGathers();
    UnshardUnusedForForward();
  }
  if (begins_order) {
    if (!begin_order_.empty()) {
      expected_order_ = std::exchange(begin_order_, {});
    }
    position_ = 0;
  }
}

void FsdpTree::BeforeForward(FsdpState& state, TensorList& inputs) {
  ModuleIteration& at = state.iteration();
  CH_CHECK(!at.summoned) << "FSDP: " << state.Name()
                         << " runs while its full parameters are summoned";
  if (InRecomputation()) {
    // A recomputation is part of backward. Unshards unless backward has reached
    // the module already, and keeps the parameters for it.
    BeginBackward();
    state.Unshard();
    state.WaitForUnshard();
  } else if (++at.forwards == 1) {
    const bool first = !std::exchange(at.in_forward, true);
    BeginForward(state, inputs, /*begins_order=*/first && IsRoot(state));
    if (!state.reduce_unused()) at.prefetched = Prefetched::kNo;
    SyncRequiresGrad(state);
    state.Unshard();
    if (first) PrefetchForward(state);
    state.WaitForUnshard();
    state.ObserveInputs(inputs);
    BeginSpan(comm_->compute(), "forward", state.ref()->name);
  }
  if (state.options().mixed_precision.output_dtype.has_value()) {
    ++casting_forwards_;
  }
  state.CastInputs(inputs);
}

void FsdpTree::AfterForward(FsdpState& state, TensorList& outputs, bool last) {
  if (state.options().mixed_precision.output_dtype.has_value()) {
    --casting_forwards_;
    // A recomputed forward is nested in no other, so it repeats the captured
    // decision.
    if (Captured(casting_forwards_ == 0)) state.CastOutputs(outputs);
  }
  if (InRecomputation()) return;
  ModuleIteration& at = state.iteration();
  CH_CHECK_GT(at.forwards, 0) << "FSDP: a forward of " << state.Name()
                              << " ended without a recorded begin; call "
                                 "ResetIteration outside of forward";
  if (--at.forwards > 0) return;
  const bool backward_follows = ObserveOutputs(state, outputs);
  EndSpan(comm_->compute(), "forward", state.ref()->name);
  if (backward_follows) forward_order_.push_back(&state);
  if (last) {
    at.in_forward = false;
    // If ranks may differ in using the module, it stays unsharded until the end
    // of the outermost forward or of backward. Otherwise a rank that uses it
    // again would gather it alone.
    const bool keeps = state.reduce_unused();
    if (!keeps && !backward_follows) {
      state.Reshard();
    } else if (!keeps && state.reshard_after_forward(IsRoot(state))) {
      state.ReshardAfterForward();
    }
  }
  EndForward(backward_follows);
}

void FsdpTree::EndForward(bool backward_follows) {
  if (--forwards_ > 0) return;
  batch_split_.End();
  if (backward_follows || in_backward_) return;
  for (FsdpState* state : states_) {
    // The backward of an earlier forward needs these unsharded.
    if (state->reduce_unused() && !forward_order_.empty()) continue;
    state->AfterOutermostForward();
  }
}

bool FsdpTree::ObserveOutputs(FsdpState& state, const TensorList& outputs) {
  const std::shared_ptr<ObservedForward> forward = state.TakeObservedForward();
  bool backward_follows = false;
  for (const Tensor& output : outputs) {
    if (!output.defined() || !output.requires_grad()) continue;
    backward_follows = true;
    GradEdge(output).node->AddPreHook([ref = state.ref(), forward] {
      if (ref->state == nullptr) return PoisonAsDestroyed(ref->name);
      FsdpTree* const tree = ref->state->tree();
      if (tree == nullptr) {
        return PoisonAsDestroyed(
            absl::StrCat("the root of the tree of ", ref->name));
      }
      ref->state->BeginBackward(forward);
      tree->BeforeBackward(*ref->state);
    });
  }
  return backward_follows;
}

void FsdpTree::BeginBackward() {
  if (std::exchange(in_backward_, true)) return;
  AtBackwardEnd([tree = shared_from_this()] { tree->AfterBackward(); });
  UnshardUnusedForBackward();
}

void FsdpTree::BeforeBackward(FsdpState& state) {
  ModuleIteration& at = state.iteration();
  const bool first = !std::exchange(at.in_backward, true);
  if (first) BeginBackward();
  if (!state.reduce_unused()) at.prefetched = Prefetched::kNo;
  const bool unshards = state.settings().unshard_in_backward;
  if (unshards) state.Unshard();
  if (first) PrefetchBackward(state);
  if (unshards) state.WaitForUnshard();
  if (first) state.BeginBackwardSpan();
}

void FsdpTree::GradientsComplete(FsdpState& state, ParamGroup& group) {
  // If ranks may differ in using the module, reduces and frees nothing before
  // the end of backward. Then the order is the same on all ranks.
  if (!state.reduce_unused()) {
    const Settings& of_module = state.settings();
    if (!settings().manual_finalization) group.gradients().Reduce(of_module);
    // Frozen parameters of the group may still be needed.
    if (of_module.reshard_after_backward && group.gradients().trains_all()) {
      group.Reshard();
    }
  }
  state.CheckBackwardComplete();
}

void FsdpTree::AfterBackward() {
  in_backward_ = false;
  // The model may be destroyed before its backward has ended.
  if (states_.empty()) return Finish();
  for (FsdpState* state : states_) state->AfterBackward(settings());
  if (settings().manual_finalization) return;
  EndReductions();
  if (settings().is_last_backward) Finish();
}

void FsdpTree::Finalize() {
  // This is the most likely order in which backward filled them.
  for (auto it = states_.rbegin(); it != states_.rend(); ++it) {
    for (const auto& group : (*it)->groups()) {
      group->gradients().Reduce((*it)->settings());
    }
  }
  if (settings().manual_finalization) EndReductions();
}

void FsdpTree::UnshardUnusedForForward() {
  for (FsdpState* state : states_) {
    if (!state->reduce_unused()) continue;
    // Modules that do not run need the current requires_grad too.
    SyncRequiresGrad(*state);
    state->Prefetch(Prefetched::kForForward);
  }
}

void FsdpTree::UnshardUnusedForBackward() {
  for (FsdpState* state : states_) {
    if (state->reduce_unused() && state->settings().unshard_in_backward) {
      state->Unshard();
    }
  }
}

// Prefetches the first `depth` modules of `order` other than `running`. A
// module that occurs more than once counts once. Skips modules that ranks may
// differ in using, so that all ranks gather the same modules.
void FsdpTree::Prefetch(const std::vector<FsdpState*>& order,
                        const FsdpState& running, int depth) {
  std::vector<const FsdpState*> seen = {&running};
  for (FsdpState* next : order) {
    if (static_cast<int>(seen.size()) > depth) return;
    if (next->reduce_unused()) continue;
    if (std::find(seen.begin(), seen.end(), next) != seen.end()) continue;
    seen.push_back(next);
    if (const auto most = settings().prefetch.bytes) {
      int64_t ahead = next->BytesToUnshard();
      for (const FsdpState* state : states_) {
        if (state == &running || state->reduce_unused()) continue;
        ahead += state->BytesUnsharding();
      }
      if (ahead > *most) return;
    }
    next->Prefetch(in_backward_ ? Prefetched::kForBackward
                                : Prefetched::kForForward);
  }
}

void FsdpTree::PrefetchForward(FsdpState& running) {
  if (running.reduce_unused()) return;
  const auto begin = expected_order_.begin();
  const auto found = std::find(begin + static_cast<ptrdiff_t>(position_),
                               expected_order_.end(), &running);
  begin_order_.push_back(&running);
  // An unexpected module does not indicate what comes next.
  const bool expected = found != expected_order_.end();
  if (expected) position_ = static_cast<size_t>(found - begin) + 1;
  if (const auto& modules = running.forward_prefetch()) {
    const std::vector<FsdpState*> next = StatesOf(*modules);
    Prefetch(next, running, static_cast<int>(next.size()));
  } else if (expected) {
    Prefetch({begin + static_cast<ptrdiff_t>(position_), expected_order_.end()},
             running, settings().prefetch.forward);
  }
}

void FsdpTree::PrefetchBackward(const FsdpState& running) {
  if (running.reduce_unused()) return;
  const auto found =
      std::find(forward_order_.rbegin(), forward_order_.rend(), &running);
  const bool expected = found != forward_order_.rend();
  if (expected) forward_order_.erase(found.base() - 1, forward_order_.end());
  if (const auto& modules = running.backward_prefetch()) {
    const std::vector<FsdpState*> next = StatesOf(*modules);
    Prefetch(next, running, static_cast<int>(next.size()));
    return;
  }
  if (!expected) return;
  std::vector<FsdpState*> next;
  for (auto it = forward_order_.rbegin(); it != forward_order_.rend(); ++it) {
    // Earlier entries belong to an earlier forward, which has its own backward.
    if (*it == states_.front() && settings().is_last_backward) break;
    if ((*it)->settings().unshard_in_backward) next.push_back(*it);
  }
  Prefetch(next, running, settings().prefetch.backward);
}

void FsdpTree::EndReductions() {
  // A backward that reduced nothing at all (that of Gradients, for example)
  // needs no barrier with the other ranks.
  bool reports = false;
  for (const FsdpState* state : states_) reports |= state->has_reduced();
  for (FsdpState* state : states_) state->EndReductions(reports);
  if (reports) CheckNoUnreducedGradients();
}

void FsdpTree::Finish() {
  for (FsdpState* state : states_) state->Finish();
  comm_->ReleaseHeld();
  forward_order_.clear();
}

void FsdpTree::Reset() {
  batch_split_.Abandon();
  for (FsdpState* state : states_) state->Reset();
  comm_->ReleaseHeld();
  forward_order_.clear();
  begin_order_.clear();
  position_ = 0;
  post_optimizer_.reset();
  forwards_ = casting_forwards_ = 0;
  in_backward_ = false;
}

}  // namespace crosshatch::fsdp
