// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/fsdp/fsdp_tree.h"

#include <algorithm>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "crosshatch/base/check.h"
#include "crosshatch/fsdp/fsdp_state.h"
#include "crosshatch/tensor/autograd.h"

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
  tree->forward_prefetch_ = options.forward_prefetch;
  tree->backward_prefetch_ = options.backward_prefetch;
  tree->prefetch_bytes_ = options.prefetch_bytes;
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

void FsdpTree::BeginForward(bool of_root) {
  if (++forwards_ == 1) {
    if (!IsAsSeen()) CheckAllSharded();
    BeginGathering();
    GatherUnused(/*in_backward=*/false);
  }
  if (!of_root) return;
  if (!begin_order_.empty()) expected_order_ = std::exchange(begin_order_, {});
  position_ = 0;
}

void FsdpTree::EndForward(bool backward_follows) {
  if (--forwards_ > 0 || backward_follows || in_backward_) return;
  for (FsdpState* state : states_) {
    // The backward of an earlier forward is to find these gathered.
    if (state->reduce_unused() && !forward_order_.empty()) continue;
    state->LeaveForward();
  }
}

void FsdpTree::GatherUnused(bool in_backward) {
  for (FsdpState* state : states_) {
    if (!state->reduce_unused()) continue;
    if (in_backward && !state->unshard_in_backward()) continue;
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
    if (prefetch_bytes_.has_value()) {
      int64_t ahead = next->BytesToGather();
      for (const FsdpState* state : states_) {
        if (state == &running || state->reduce_unused()) continue;
        ahead += state->BytesGathering();
      }
      if (ahead > *prefetch_bytes_) return;
    }
    next->UnshardAhead(in_backward_ ? Ahead::kOfBackward : Ahead::kOfForward);
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
             running, forward_prefetch_);
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
    if (*it == states_.front() && is_last_backward_) break;
    if ((*it)->unshard_in_backward()) next.push_back(*it);
  }
  Prefetch(next, running, backward_prefetch_);
}

void FsdpTree::BeginBackward() {
  if (in_backward_) return;
  in_backward_ = true;
  AtBackwardEnd([tree = shared_from_this()] { tree->EndBackward(); });
  GatherUnused(/*in_backward=*/true);
}

void FsdpTree::EndBackward() {
  for (FsdpState* state : states_) state->EndBackward();
  if (!manual_finalization_) EndReductions();
  in_backward_ = false;
  if (is_last_backward_ && !manual_finalization_) Finish();
}

void FsdpTree::Reduce() {
  // Most likely the order in which backward filled them.
  for (auto it = states_.rbegin(); it != states_.rend(); ++it) {
    for (const auto& group : (*it)->groups()) group->gradients().Reduce();
  }
  if (manual_finalization_) EndReductions();
}

void FsdpTree::EndReductions() {
  // A backward that reduced nothing at all (of Gradients, say) has nothing to
  // say to the other ranks.
  bool reports = false;
  for (const FsdpState* state : states_) {
    for (const auto& group : state->groups()) {
      reports = reports || group->gradients().took_part();
    }
  }
  for (const FsdpState* state : states_) {
    for (const auto& group : state->groups()) {
      group->gradients().EndReductions(reports);
    }
  }
}

void FsdpTree::Finish() {
  for (FsdpState* state : states_) {
    for (const auto& group : state->groups()) group->gradients().Finish();
  }
  comm_->ReleaseHeld();
  forward_order_.clear();
}

void FsdpTree::Reset() {
  for (FsdpState* state : states_) state->Reset();
  comm_->ReleaseHeld();
  forward_order_.clear();
  begin_order_.clear();
  position_ = 0;
  forwards_ = casting_forwards_ = 0;
  in_backward_ = false;
  post_optimizer_.reset();
}

}  // namespace crosshatch::fsdp
