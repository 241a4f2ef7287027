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
#include "crosshatch/nn/check_buffers.h"
#include "crosshatch/nn/module_root.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/rank_context.h"
#include "crosshatch/tensor/recompute.h"

namespace crosshatch::fsdp {
namespace {

// Those that are still there, and in a tree: others have not run yet, and have
// nothing to gather on.
std::vector<FsdpState*> StatesOf(const Settings::Modules& lives) {
  std::vector<FsdpState*> states;
  for (const std::shared_ptr<const FsdpLife>& life : lives) {
    FsdpState* const state = life->state;
    if (state != nullptr && state->events() != nullptr) states.push_back(state);
  }
  return states;
}

// Whose backward issued the reductions finds none of its states later.
void Leave(FsdpState& state) {
  // Kept: it may go with the last of its states.
  const std::shared_ptr<ModuleEvents> kept = state.events();
  if (FsdpTree* const tree = FsdpTree::Find(state); tree != nullptr) {
    tree->Finish();
    tree->Went(state);
  }
}

}  // namespace

FsdpTree* FsdpTree::Find(const FsdpState& state) {
  // Form alone gives a state its listener.
  return static_cast<FsdpTree*>(state.events().get());
}

FsdpTree& FsdpTree::Of(FsdpState& state) {
  if (Find(state) == nullptr) Form(state);
  return *Find(state);
}

void FsdpTree::Hook(FsdpState& state) {
  for (nn::Module* module : state.modules()) {
    module->AddPreHook(
        [&state](nn::Module&, TensorList& inputs) {
          Of(state).BeginForward(state, inputs);
        },
        /*first=*/true);
    module->AddPostHook([&state, frees = module == state.modules().back()](
                            nn::Module&, TensorSpan, TensorList& outputs) {
      Of(state).EndForward(state, outputs, frees);
    });
  }
}

void FsdpTree::Form(FsdpState& root, std::shared_ptr<CommContext> comm) {
  std::shared_ptr<FsdpTree> tree(new FsdpTree);
  const FullyShardOptions& options = root.options();
  tree->comm_ = comm != nullptr
                    ? std::move(comm)
                    : std::make_shared<CommContext>(RankContext::Current(),
                                                    options.reduce_buffers);
  tree->states_ = FsdpState::Below(root.modules());
  tree->expected_order_ = tree->states_;
  tree->CheckAllSharded();
  for (FsdpState* state : tree->states_) {
    Leave(*state);
    state->Join(tree, tree->comm_, root.mesh());
  }
}

void FsdpTree::Went(const FsdpState& state) {
  const bool is_root = !states_.empty() && states_.front() == &state;
  // What was seen below its module may be gone with it.
  seen_.clear();
  for (std::vector<FsdpState*>* states :
       {&states_, &expected_order_, &forward_order_, &begin_order_}) {
    states->erase(std::remove(states->begin(), states->end(), &state),
                  states->end());
  }
  // What is expected next is found again.
  position_ = std::min(position_, expected_order_.size());
  if (!is_root) return;
  // They go untold from here on, and some of them later than this tree, which
  // handles keep. What was issued for those that stay is waited for now.
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
  std::set<const nn::Parameter*> left_out;
  // Who ignores a parameter may stand above: a replicated module is a tree of
  // its own.
  for (const FsdpState* state :
       FsdpState::AllAround(*states_.front()->modules().front())) {
    for (const auto& p : state->left_out().ignored) left_out.insert(p.get());
  }
  for (const nn::NamedModule& named : modules) {
    const FsdpState* const state = FsdpState::Of(*named.module);
    if (state == nullptr) continue;
    for (const nn::Parameter* p : state->left_out().tied) {
      CH_CHECK(p->gathered().defined() || left_out.count(p) != 0)
          << "FSDP: parameter " << p->name()
          << " is tied between modules that are sharded apart, and no sharded "
             "module has them all below it; call FullyShard on their common "
             "ancestor too";
    }
  }
  for (const nn::NamedModule& named : modules) {
    for (const auto& [name, parameter] : named.module->own_parameters()) {
      if (left_out.count(parameter.get()) != 0) continue;
      CH_CHECK(parameter->gathered().defined())
          << "FSDP: parameter " << named.module->FullName()
          << (named.module->parent() == nullptr ? "" : ".") << name
          << " was registered after FullyShard: it would be neither sharded "
             "nor reduced; register it before, or name it in "
             "FullyShardOptions::ignored_params";
    }
  }
}

void FsdpTree::CheckRestHasNoGradients() {
  RankContext& context = RankContext::Current();
  const DeviceMesh& mesh = states_.front()->mesh();
  nn::Module* const here = states_.front()->modules().front();
  if (here->parent() == nullptr || mesh.size() == 1 || context.poisoned()) {
    return;
  }
  std::set<const nn::Parameter*> ignored;
  for (const FsdpState* state : FsdpState::AllAround(*here)) {
    for (const auto& p : state->left_out().ignored) ignored.insert(p.get());
  }
  std::vector<std::string> rest;
  for (const auto& [name, parameter] : nn::RootOf(*here).NamedParameters()) {
    // What is distributed over these ranks too has had its own sum.
    const Tensor& data = parameter->data();
    const bool is_spread = parameter->gathered().defined() ||
                           nn::IsSpreadOver(data, mesh.layout());
    if (is_spread || ignored.count(parameter) != 0) continue;
    if (parameter->grad().defined()) rest.push_back(name);
  }
  if (rest.empty()) return;
  constexpr size_t kMostNames = 8;
  const size_t named = std::min(rest.size(), kMostNames);
  context.Poison(absl::FailedPreconditionError(absl::StrCat(
      "FSDP: ", absl::StrJoin(rest.begin(), rest.begin() + named, ", "),
      named < rest.size() ? absl::StrCat(" and ", rest.size() - named, " more")
                          : "",
      " would be trained apart on each rank of ", mesh.ToString(),
      ": no FullyShard has them, and their gradients are of this rank's part "
      "of the batch; call FullyShard on the whole model too, after its blocks, "
      "or where that is meant name them in its "
      "FullyShardOptions::ignored_params")));
}

bool FsdpTree::IsAsSeen() const {
  for (const Seen& seen : seen_) {
    if (seen.module->own_parameters().size() != seen.parameters ||
        seen.module->children().size() != seen.children) {
      return false;
    }
  }
  return true;
}

void FsdpTree::BeginGathering() {
  const Event shards_are_there =
      post_optimizer_.has_value()
          ? *std::exchange(post_optimizer_, std::nullopt)
          : comm_->compute().Record();
  comm_->all_gather().Wait(shards_are_there);
  bool offloaded = false;
  for (const FsdpState* state : states_) {
    for (const auto& group : state->groups()) group->ShardsAreOrdered();
    offloaded = offloaded || state->options().cpu_offload;
  }
  if (offloaded) comm_->to_device().Wait(shards_are_there);
}

TreeFacts FsdpTree::Facts() const {
  // The model may go before its backward has ended.
  if (states_.empty()) return {};
  const Settings& settings = states_.front()->settings();
  return {.is_last_backward = settings.is_last_backward,
          .manual_finalization = settings.manual_finalization};
}

ModuleFacts FsdpTree::FactsOf(const FsdpState& state) const {
  ModuleFacts facts = state.Facts(/*as_root=*/&state == states_.front());
  const Settings& settings = states_.front()->settings();
  facts.is_last_backward = settings.is_last_backward;
  facts.manual_finalization = settings.manual_finalization;
  return facts;
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

void FsdpTree::FindRows(const Forward& forward) {
  const FsdpState& state = forward.state;
  if (!state.splits_batch()) return;
  // Whoever knows better has said so.
  if (nn::BatchRowsScope::Current() != nullptr) return;
  if (const auto randomness = RowRandomness(state.modules())) {
    batch_split_.Begin(state.mesh(), state.Name(), forward.inputs, *randomness);
  }
}

void FsdpTree::BeginForward(FsdpState& state, TensorList& inputs) {
  CH_CHECK(!state.iteration().summoned)
      << "FSDP: " << state.Name()
      << " runs while its full parameters are summoned";
  Take(state,
       InRecomputation() ? ModuleEvent::kRecomputationBegins
                         : ModuleEvent::kForwardBegins,
       FactsOf(state), /*group=*/nullptr, &inputs);
  if (state.options().mixed_precision.output_dtype.has_value()) {
    Take(TreeEvent::kCastingForwardBegins, {});
  }
  state.CastInputs(inputs);
}

void FsdpTree::EndForward(FsdpState& state, TensorList& outputs, bool frees) {
  if (state.options().mixed_precision.output_dtype.has_value()) {
    Take(TreeEvent::kCastingForwardEnds, {});
    // Run again in backward it is within no other, and casts as it did.
    if (Captured(iteration_.casting_forwards == 0)) state.CastOutputs(outputs);
  }
  if (InRecomputation()) return;
  ModuleFacts facts = FactsOf(state);
  facts.frees = frees;
  if (state.iteration().forwards == 1) {
    facts.backward_follows = state.WatchOutputs(outputs);
  }
  Take(state, ModuleEvent::kForwardEnds, facts);
}

void FsdpTree::Happened(FsdpState& state, ModuleEvent event,
                        ParamGroup* group) {
  ModuleFacts facts = FactsOf(state);
  if (event == ModuleEvent::kGroupIsComplete) {
    facts.trains_all = group->gradients().trains_all();
  } else if (event == ModuleEvent::kBackwardIsComplete) {
    facts.passes_gradients = state.PassesGradients();
  }
  Take(state, event, facts, group);
}

void FsdpTree::Take(FsdpState& state, ModuleEvent event,
                    const ModuleFacts& facts, ParamGroup* group,
                    const TensorList* inputs) {
  const ModuleTransition transition = state.Advance(event, facts);
  for (const ModuleAction action : transition.actions) {
    Do(state, action, facts, group, inputs);
  }
}

void FsdpTree::TakeOfGroups(FsdpState& state, ModuleEvent of_group,
                            ModuleEvent event) {
  for (const auto& group : state.groups()) {
    Take(state, of_group, FactsOf(state), group.get());
  }
  state.StopWatching();
  Take(state, event, FactsOf(state));
}

void FsdpTree::Do(FsdpState& state, ModuleAction action,
                  const ModuleFacts& facts, ParamGroup* group,
                  const TensorList* inputs) {
  TreeFacts of_tree = Facts();
  switch (action) {
    case ModuleAction::kBeginForwardInTree:
    case ModuleAction::kBeginForwardOfRootInTree: {
      of_tree.of_root = action == ModuleAction::kBeginForwardOfRootInTree;
      of_tree.compares_replicas = ComparesReplicas();
      const Forward forward = {.state = state, .inputs = *inputs};
      return Take(TreeEvent::kForwardBegins, of_tree, &forward);
    }
    case ModuleAction::kEndForwardInTree:
      of_tree.backward_follows = facts.backward_follows;
      return Take(TreeEvent::kForwardEnds, of_tree);
    case ModuleAction::kBeginBackwardInTree:
      return Take(TreeEvent::kBackwardBegins, of_tree);
    case ModuleAction::kRecordForward:
      return forward_order_.push_back(&state);
    case ModuleAction::kPrefetchForward:
      return PrefetchForward(state);
    case ModuleAction::kPrefetchBackward:
      return PrefetchBackward(state);
    default:
      return state.Do(action, group, inputs);
  }
}

void FsdpTree::Take(TreeEvent event, const TreeFacts& facts,
                    const Forward* forward) {
  const TreeTransition transition = Transition(iteration_, event, facts);
  iteration_ = transition.next;
  for (const TreeAction action : transition.actions) Do(action, forward);
}

void FsdpTree::Do(TreeAction action, const Forward* forward) {
  switch (action) {
    case TreeAction::kFindRows:
      return FindRows(*forward);
    case TreeAction::kForgetRows:
      return batch_split_.End();
    case TreeAction::kCompareBuffers:
      return CompareBuffers();
    case TreeAction::kCheckAllSharded:
      if (!IsAsSeen()) CheckAllSharded();
      return;
    case TreeAction::kBeginGathering:
      return BeginGathering();
    case TreeAction::kGatherUnusedForForward:
      return GatherUnused(/*in_backward=*/false);
    case TreeAction::kGatherUnusedForBackward:
      return GatherUnused(/*in_backward=*/true);
    case TreeAction::kBeginOrder:
      if (!begin_order_.empty()) {
        expected_order_ = std::exchange(begin_order_, {});
      }
      position_ = 0;
      return;
    case TreeAction::kLeaveForward:
      for (FsdpState* state : states_) {
        // The backward of an earlier forward is to find these gathered.
        if (state->reduce_unused() && !forward_order_.empty()) continue;
        Take(*state, ModuleEvent::kOutermostForwardEnds, FactsOf(*state));
      }
      return;
    case TreeAction::kAwaitBackwardEnd:
      AtBackwardEnd([tree = shared_from_this()] {
        tree->Take(TreeEvent::kBackwardEnds, tree->Facts());
      });
      return;
    case TreeAction::kEndModules:
      for (FsdpState* state : states_) {
        TakeOfGroups(*state, ModuleEvent::kGroupBackwardEnds,
                     ModuleEvent::kBackwardEnds);
      }
      return;
    case TreeAction::kReduceModules:
      return ReduceModules();
    case TreeAction::kEndReductions:
      return EndReductions();
    case TreeAction::kFinish:
      return Finish();
  }
}

void FsdpTree::GatherAhead(FsdpState& state, Ahead ahead) {
  ModuleFacts facts = FactsOf(state);
  facts.gathers = state.BytesToGather() > 0;
  Take(state,
       ahead == Ahead::kOfForward ? ModuleEvent::kGatheredAheadOfForward
                                  : ModuleEvent::kGatheredAheadOfBackward,
       facts);
}

void FsdpTree::GatherUnused(bool in_backward) {
  for (FsdpState* state : states_) {
    if (!state->reduce_unused()) continue;
    if (in_backward && !state->settings().unshard_in_backward) continue;
    if (in_backward) {
      state->Unshard();
    } else {
      // A module that does not run takes it up all the same.
      state->FollowTrainability();
      GatherAhead(*state, Ahead::kOfForward);
    }
  }
}

// Gathers the first `depth` of `order` besides `running`. A module that runs
// more than once counts once. What is gathered and how far ahead is the same on
// all ranks: it takes no notice of modules that ranks may differ in using.
void FsdpTree::Prefetch(const std::vector<FsdpState*>& order,
                        const FsdpState& running, int depth) {
  std::vector<const FsdpState*> seen = {&running};
  for (FsdpState* next : order) {
    if (static_cast<int>(seen.size()) > depth) return;
    if (next->reduce_unused()) continue;
    if (std::find(seen.begin(), seen.end(), next) != seen.end()) continue;
    seen.push_back(next);
    if (const auto most = settings().prefetch_bytes) {
      int64_t ahead = next->BytesToGather();
      for (const FsdpState* state : states_) {
        if (state == &running || state->reduce_unused()) continue;
        ahead += state->BytesGathering();
      }
      if (ahead > *most) return;
    }
    GatherAhead(
        *next, iteration_.in_backward ? Ahead::kOfBackward : Ahead::kOfForward);
  }
}

void FsdpTree::PrefetchForward(FsdpState& running) {
  if (running.reduce_unused()) return;
  const auto begin = expected_order_.begin();
  const auto found = std::find(begin + static_cast<ptrdiff_t>(position_),
                               expected_order_.end(), &running);
  begin_order_.push_back(&running);
  // A module that was not expected here says nothing of what comes next.
  const bool expected = found != expected_order_.end();
  if (expected) position_ = static_cast<size_t>(found - begin) + 1;
  if (const auto& modules = running.settings().forward_prefetch_modules) {
    const std::vector<FsdpState*> next = StatesOf(*modules);
    Prefetch(next, running, static_cast<int>(next.size()));
  } else if (expected) {
    Prefetch({begin + static_cast<ptrdiff_t>(position_), expected_order_.end()},
             running, settings().forward_prefetch);
  }
}

void FsdpTree::PrefetchBackward(FsdpState& running) {
  if (running.reduce_unused()) return;
  const auto found =
      std::find(forward_order_.rbegin(), forward_order_.rend(), &running);
  const bool expected = found != forward_order_.rend();
  if (expected) forward_order_.erase(found.base() - 1, forward_order_.end());
  if (const auto& modules = running.settings().backward_prefetch_modules) {
    const std::vector<FsdpState*> next = StatesOf(*modules);
    Prefetch(next, running, static_cast<int>(next.size()));
    return;
  }
  if (!expected) return;
  std::vector<FsdpState*> next;
  for (auto it = forward_order_.rbegin(); it != forward_order_.rend(); ++it) {
    // From here on it is an earlier forward, which another backward is for.
    if (*it == states_.front() && settings().is_last_backward) break;
    if ((*it)->settings().unshard_in_backward) next.push_back(*it);
  }
  Prefetch(next, running, settings().backward_prefetch);
}

void FsdpTree::ReduceModules() {
  // Most likely the order in which backward filled them.
  for (auto it = states_.rbegin(); it != states_.rend(); ++it) {
    for (const auto& group : (*it)->groups()) {
      Take(**it, ModuleEvent::kGroupIsFinalized, FactsOf(**it), group.get());
    }
  }
}

void FsdpTree::EndReductions() {
  // A backward that reduced nothing at all (of Gradients, say) has nothing to
  // say to the other ranks.
  bool reports = false;
  for (const FsdpState* state : states_) reports |= state->took_part();
  for (FsdpState* state : states_) state->EndReductions(reports);
  if (reports) CheckRestHasNoGradients();
}

void FsdpTree::Finish() {
  for (FsdpState* state : states_) state->Finish();
  comm_->ReleaseHeld();
  forward_order_.clear();
}

void FsdpTree::Reset() {
  batch_split_.Abandon();
  for (FsdpState* state : states_) {
    TakeOfGroups(*state, ModuleEvent::kGroupIsReset, ModuleEvent::kIsReset);
  }
  comm_->ReleaseHeld();
  forward_order_.clear();
  begin_order_.clear();
  position_ = 0;
  post_optimizer_.reset();
  Take(TreeEvent::kIsReset, {});
}

}  // namespace crosshatch::fsdp
