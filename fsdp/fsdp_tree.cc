// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/fsdp/fsdp_tree.h"

#include <algorithm>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "crosshatch/base/check.h"
#include "crosshatch/dtensor/verify.h"
#include "crosshatch/fsdp/batch_split.h"
#include "crosshatch/fsdp/fsdp_state.h"
#include "crosshatch/nn/batch_rows.h"
#include "crosshatch/nn/check_buffers.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch::fsdp {
namespace {

// Those that are still there.
std::vector<FsdpState*> StatesOf(const FsdpState::Lives& lives) {
  std::vector<FsdpState*> states;
  for (const std::shared_ptr<const FsdpLife>& life : lives) {
    if (life->state != nullptr) states.push_back(life->state);
  }
  return states;
}

}  // namespace

void FsdpTree::Form(FsdpState& root, std::shared_ptr<CommContext> comm) {
  std::shared_ptr<FsdpTree> tree(new FsdpTree);
  const FullyShardOptions& options = root.options();
  tree->comm_ = comm != nullptr
                    ? std::move(comm)
                    : std::make_shared<CommContext>(RankContext::Current(),
                                                    options.reduce_buffers);
  tree->settings_ = {.forward_prefetch = options.forward_prefetch,
                     .backward_prefetch = options.backward_prefetch,
                     .prefetch_bytes = options.prefetch_bytes};
  tree->states_ = FsdpState::Below(root.modules());
  tree->expected_order_ = tree->states_;
  tree->CheckAllSharded();
  for (FsdpState* state : tree->states_) {
    state->JoinTree(tree, state == &root, tree->comm_);
  }
}

void FsdpTree::Forget(const FsdpState& state) {
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
  for (FsdpState* orphan : states_) orphan->LeaveTree();
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
  for (const nn::NamedModule& named : modules) {
    const FsdpState* const state = FsdpState::Of(*named.module);
    if (state == nullptr) continue;
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
  return {.is_last_backward = settings_.is_last_backward,
          .manual_finalization = settings_.manual_finalization};
}

void FsdpTree::CompareBuffers() {
  RankContext& context = RankContext::Current();
  if (context.poisoned()) return;
  if (has_compared_buffers_ && !ComparesReplicas()) return;
  has_compared_buffers_ = true;
  const FsdpState& root = *states_.front();
  for (nn::Module* module : root.modules()) {
    absl::Status status = nn::CheckBuffers(*module, root.mesh());
    if (!status.ok()) return context.Poison(std::move(status));
  }
}

void FsdpTree::BeginForward(bool of_root) {
  if (of_root) CompareBuffers();
  TreeFacts facts = Facts();
  facts.of_root = of_root;
  Take(TreeEvent::kForwardBegins, facts);
}

void FsdpTree::EndForward(bool backward_follows) {
  TreeFacts facts = Facts();
  facts.backward_follows = backward_follows;
  Take(TreeEvent::kForwardEnds, facts);
}

bool FsdpTree::EndCasting() {
  Take(TreeEvent::kCastingForwardEnds, {});
  return iteration_.casting_forwards == 0;
}

void FsdpTree::EnterForward(const FsdpState& state, TensorSpan inputs) {
  if (forwards_++ > 0 || !state.splits_batch()) return;
  // Whoever knows better has said so.
  if (nn::BatchRowsScope::Current() != nullptr) return;
  if (const auto randomness = RowRandomness(state.modules())) {
    batch_split_.Begin(state.mesh(), state.Name(), inputs, *randomness);
  }
}

void FsdpTree::ExitForward() {
  if (--forwards_ == 0) batch_split_.End();
}

void FsdpTree::Take(TreeEvent event, const TreeFacts& facts) {
  const TreeTransition transition = Transition(iteration_, event, facts);
  iteration_ = transition.next;
  for (const TreeAction action : transition.actions) Do(action);
}

void FsdpTree::Do(TreeAction action) {
  switch (action) {
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
        state->LeaveForward();
      }
      return;
    case TreeAction::kAwaitBackwardEnd:
      AtBackwardEnd([tree = shared_from_this()] {
        tree->Take(TreeEvent::kBackwardEnds, tree->Facts());
      });
      return;
    case TreeAction::kEndModules:
      for (FsdpState* state : states_) state->EndBackward();
      return;
    case TreeAction::kReduceModules:
      return ReduceModules();
    case TreeAction::kEndReductions:
      return EndReductions();
    case TreeAction::kFinish:
      return Finish();
  }
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
      state->UnshardAhead(Ahead::kOfForward);
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
    if (settings_.prefetch_bytes.has_value()) {
      int64_t ahead = next->BytesToGather();
      for (const FsdpState* state : states_) {
        if (state == &running || state->reduce_unused()) continue;
        ahead += state->BytesGathering();
      }
      if (ahead > *settings_.prefetch_bytes) return;
    }
    next->UnshardAhead(iteration_.in_backward ? Ahead::kOfBackward
                                              : Ahead::kOfForward);
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
  if (running.forward_prefetch().has_value()) {
    const std::vector<FsdpState*> next = StatesOf(*running.forward_prefetch());
    Prefetch(next, running, static_cast<int>(next.size()));
  } else if (expected) {
    Prefetch({begin + static_cast<ptrdiff_t>(position_), expected_order_.end()},
             running, settings_.forward_prefetch);
  }
}

void FsdpTree::PrefetchBackward(FsdpState& running) {
  if (running.reduce_unused()) return;
  const auto found =
      std::find(forward_order_.rbegin(), forward_order_.rend(), &running);
  const bool expected = found != forward_order_.rend();
  if (expected) forward_order_.erase(found.base() - 1, forward_order_.end());
  if (running.backward_prefetch().has_value()) {
    const std::vector<FsdpState*> next = StatesOf(*running.backward_prefetch());
    Prefetch(next, running, static_cast<int>(next.size()));
    return;
  }
  if (!expected) return;
  std::vector<FsdpState*> next;
  for (auto it = forward_order_.rbegin(); it != forward_order_.rend(); ++it) {
    // From here on it is an earlier forward, which another backward is for.
    if (*it == states_.front() && settings_.is_last_backward) break;
    if ((*it)->settings().unshard_in_backward) next.push_back(*it);
  }
  Prefetch(next, running, settings_.backward_prefetch);
}

void FsdpTree::ReduceModules() {
  // Most likely the order in which backward filled them.
  for (auto it = states_.rbegin(); it != states_.rend(); ++it) {
    (*it)->Finalize();
  }
}

void FsdpTree::EndReductions() {
  // A backward that reduced nothing at all (of Gradients, say) has nothing to
  // say to the other ranks.
  bool reports = false;
  for (const FsdpState* state : states_) reports |= state->took_part();
  for (FsdpState* state : states_) state->EndReductions(reports);
}

void FsdpTree::Finish() {
  for (FsdpState* state : states_) state->Finish();
  comm_->ReleaseHeld();
  forward_order_.clear();
}

void FsdpTree::Reset() {
  forwards_ = 0;
  batch_split_.Abandon();
  for (FsdpState* state : states_) state->Reset();
  comm_->ReleaseHeld();
  forward_order_.clear();
  begin_order_.clear();
  position_ = 0;
  post_optimizer_.reset();
  Take(TreeEvent::kIsReset, {});
}

}  // namespace crosshatch::fsdp
