// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/fsdp/iteration.h"

#include <initializer_list>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace crosshatch::fsdp {
namespace {

using A = ModuleAction;

template <typename Actions>
std::string Join(const Actions& actions) {
  std::string text;
  for (const auto action : actions) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", Name(action));
  }
  return text;
}

// What a state prints, separated.
struct Parts {
  std::string text;

  void Add(absl::string_view part) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", part);
  }
};

// Builds one transition.
class Machine {
 public:
  Machine(const ModuleIteration& from, const ModuleFacts& facts)
      : facts_(facts), result_{.next = from, .actions = {}} {}

  ModuleTransition Take(ModuleEvent event) {
    switch (event) {
      case ModuleEvent::kForwardBegins:
        BeginForward();
        break;
      case ModuleEvent::kForwardEnds:
        EndForward();
        break;
      case ModuleEvent::kOutermostForwardEnds:
        LeaveForward();
        break;
      case ModuleEvent::kRecomputationBegins:
        // A part of backward: gathered unless backward has been here already,
        // and kept for it.
        Do({A::kBeginBackwardInTree, A::kUnshard, A::kWait});
        break;
      case ModuleEvent::kBackwardBegins:
        BeginBackward();
        break;
      case ModuleEvent::kGroupIsComplete:
        // Where ranks differ in what they use, gathers and reductions keep to
        // one order: nothing before the end of backward.
        if (facts_.ranks_may_differ) break;
        if (!facts_.manual_finalization) Do({A::kReduceGroup});
        // What is frozen in it may be needed yet.
        if (facts_.reshards_after_backward && facts_.trains_all) {
          Do({A::kReshardGroup});
        }
        break;
      case ModuleEvent::kGroupIsNeededAgain:
        // The gradient of a bias, say, needs nothing that forward saved, so it
        // may be there, and its group freed, before the rest is recomputed.
        Do({A::kUnshardGroup});
        break;
      case ModuleEvent::kBackwardIsComplete:
        if (!facts_.reshards_after_backward) break;
        if (!facts_.ranks_may_differ && !facts_.passes_gradients) Reshard();
        EndBackwardSpan();
        break;
      case ModuleEvent::kGroupBackwardEnds:
        if (!facts_.manual_finalization) Do({A::kReduceGroup});
        if (facts_.reshards_after_backward && !WaitsForNextBackward()) {
          Do({A::kReshardGroup});
        }
        Do({A::kEndGroup});
        break;
      case ModuleEvent::kBackwardEnds:
        EndBackward();
        break;
      case ModuleEvent::kGroupIsFinalized:
        Do({A::kReduceGroup});
        break;
      case ModuleEvent::kGatheredAheadOfForward:
        GatherAhead(Ahead::kOfForward);
        break;
      case ModuleEvent::kGatheredAheadOfBackward:
        GatherAhead(Ahead::kOfBackward);
        break;
      case ModuleEvent::kReshardIsAskedFor:
        Reshard();
        break;
      case ModuleEvent::kGroupIsReset:
        Do({A::kResetGroup, A::kReshardGroup});
        break;
      case ModuleEvent::kIsReset:
        EndBackwardSpan();
        next() = {.summoned = next().summoned};
        break;
      case ModuleEvent::kSummonBegins:
        next().summoned = true;
        break;
      case ModuleEvent::kSummonEnds:
        next().summoned = false;
        break;
    }
    return std::move(result_);
  }

 private:
  ModuleIteration& next() { return result_.next; }
  void Do(std::initializer_list<A> actions) {
    result_.actions.insert(result_.actions.end(), actions.begin(),
                           actions.end());
  }

  void BeginForward() {
    if (++next().forwards > 1) return;
    const bool first = !std::exchange(next().in_forward, true);
    Do({first && facts_.is_root ? A::kBeginForwardOfRootInTree
                                : A::kBeginForwardInTree});
    if (!facts_.ranks_may_differ) next().ahead = Ahead::kOfNothing;
    Do({A::kFollowTrainability, A::kUnshard});
    if (first) Do({A::kPrefetchForward});
    Do({A::kWait, A::kWatchInputs, A::kBeginForwardSpan});
  }

  void EndForward() {
    if (--next().forwards > 0) return;
    Do({A::kEndForwardSpan});
    if (facts_.backward_follows) Do({A::kRecordForward});
    if (facts_.frees) {
      next().in_forward = false;
      // What ranks may differ in using stays to the end of the outermost
      // forward or of backward: one that uses it again must not gather it
      // alone.
      if (!facts_.ranks_may_differ) FreeAfterForward();
    }
    Do({A::kEndForwardInTree});
  }

  void FreeAfterForward() {
    if (!facts_.backward_follows) {
      Reshard();
    } else if (facts_.reshards_after_forward) {
      Do({A::kReshardAfterForward});
    }
  }

  // Frees what was gathered for forwards that have not come, other modules of a
  // list among them.
  void LeaveForward() {
    const bool waits_for_more = std::exchange(next().in_forward, false);
    if (waits_for_more || next().ahead == Ahead::kOfForward) Reshard();
  }

  void BeginBackward() {
    const bool first = !std::exchange(next().in_backward, true);
    if (first) Do({A::kBeginBackwardInTree});
    if (!facts_.ranks_may_differ) next().ahead = Ahead::kOfNothing;
    if (facts_.unshards_in_backward) Do({A::kUnshard});
    if (first) Do({A::kPrefetchBackward});
    if (facts_.unshards_in_backward) Do({A::kWait});
    if (first) {
      Do({A::kBeginBackwardSpan});
      next().computes_backward = true;
    }
  }

  // What was gathered ahead of the next backward waits for it.
  bool WaitsForNextBackward() {
    return next().ahead == Ahead::kOfBackward && !facts_.is_last_backward;
  }

  void EndBackward() {
    EndBackwardSpan();
    next().in_backward = next().in_forward = false;
    if (!WaitsForNextBackward()) next().ahead = Ahead::kOfNothing;
  }

  void GatherAhead(Ahead ahead) {
    if (facts_.gathers || facts_.ranks_may_differ) next().ahead = ahead;
    Do({A::kUnshard});
  }

  void Reshard() {
    next().ahead = Ahead::kOfNothing;
    Do({A::kReshard});
  }

  void EndBackwardSpan() {
    if (!std::exchange(next().computes_backward, false)) return;
    Do({A::kEndBackwardSpan});
  }

  const ModuleFacts& facts_;
  ModuleTransition result_;
};

}  // namespace

const char* Name(ModuleEvent event) {
  switch (event) {
    case ModuleEvent::kForwardBegins:
      return "forward begins";
    case ModuleEvent::kForwardEnds:
      return "forward ends";
    case ModuleEvent::kOutermostForwardEnds:
      return "outermost forward ends";
    case ModuleEvent::kRecomputationBegins:
      return "recomputation begins";
    case ModuleEvent::kBackwardBegins:
      return "backward begins";
    case ModuleEvent::kGroupIsComplete:
      return "group is complete";
    case ModuleEvent::kGroupIsNeededAgain:
      return "group is needed again";
    case ModuleEvent::kBackwardIsComplete:
      return "backward is complete";
    case ModuleEvent::kGroupBackwardEnds:
      return "backward ends for group";
    case ModuleEvent::kBackwardEnds:
      return "backward ends";
    case ModuleEvent::kGroupIsFinalized:
      return "group is finalized";
    case ModuleEvent::kGatheredAheadOfForward:
      return "gathered ahead of forward";
    case ModuleEvent::kGatheredAheadOfBackward:
      return "gathered ahead of backward";
    case ModuleEvent::kReshardIsAskedFor:
      return "reshard is asked for";
    case ModuleEvent::kGroupIsReset:
      return "group is reset";
    case ModuleEvent::kIsReset:
      return "is reset";
    case ModuleEvent::kSummonBegins:
      return "summon begins";
    case ModuleEvent::kSummonEnds:
      return "summon ends";
  }
  return "?";
}

const char* Name(ModuleAction action) {
  switch (action) {
    case A::kBeginForwardInTree:
      return "begin forward in tree";
    case A::kBeginForwardOfRootInTree:
      return "begin forward of root in tree";
    case A::kEndForwardInTree:
      return "end forward in tree";
    case A::kBeginBackwardInTree:
      return "begin backward in tree";
    case A::kRecordForward:
      return "record forward";
    case A::kPrefetchForward:
      return "prefetch forward";
    case A::kPrefetchBackward:
      return "prefetch backward";
    case A::kFollowTrainability:
      return "follow trainability";
    case A::kUnshard:
      return "unshard";
    case A::kWait:
      return "wait";
    case A::kReshard:
      return "reshard";
    case A::kReshardAfterForward:
      return "reshard after forward";
    case A::kWatchInputs:
      return "watch inputs";
    case A::kReduceGroup:
      return "reduce group";
    case A::kUnshardGroup:
      return "unshard group";
    case A::kReshardGroup:
      return "reshard group";
    case A::kEndGroup:
      return "end group";
    case A::kResetGroup:
      return "reset group";
    case A::kBeginForwardSpan:
      return "begin forward span";
    case A::kEndForwardSpan:
      return "end forward span";
    case A::kBeginBackwardSpan:
      return "begin backward span";
    case A::kEndBackwardSpan:
      return "end backward span";
  }
  return "?";
}

std::string ModuleIteration::ToString() const {
  Parts parts;
  if (forwards > 0) parts.Add(absl::StrCat("runs forward ", forwards));
  if (in_forward) parts.Add("in forward");
  if (in_backward) parts.Add("in backward");
  if (computes_backward) parts.Add("computes backward");
  if (ahead == Ahead::kOfForward) parts.Add("gathered ahead of forward");
  if (ahead == Ahead::kOfBackward) parts.Add("gathered ahead of backward");
  if (summoned) parts.Add("summoned");
  return parts.text.empty() ? "at rest" : parts.text;
}

std::string ModuleTransition::ToString() const {
  return absl::StrCat(next.ToString(), ": ", Join(actions));
}

ModuleTransition Transition(const ModuleIteration& from, ModuleEvent event,
                            const ModuleFacts& facts) {
  return Machine(from, facts).Take(event);
}

const char* Name(TreeEvent event) {
  switch (event) {
    case TreeEvent::kForwardBegins:
      return "forward begins";
    case TreeEvent::kForwardEnds:
      return "forward ends";
    case TreeEvent::kCastingForwardBegins:
      return "casting forward begins";
    case TreeEvent::kCastingForwardEnds:
      return "casting forward ends";
    case TreeEvent::kBackwardBegins:
      return "backward begins";
    case TreeEvent::kBackwardEnds:
      return "backward ends";
    case TreeEvent::kFinalizeIsAskedFor:
      return "finalize is asked for";
    case TreeEvent::kIsReset:
      return "is reset";
  }
  return "?";
}

const char* Name(TreeAction action) {
  switch (action) {
    case TreeAction::kFindRows:
      return "find rows";
    case TreeAction::kForgetRows:
      return "forget rows";
    case TreeAction::kCompareBuffers:
      return "compare buffers";
    case TreeAction::kCheckAllSharded:
      return "check all sharded";
    case TreeAction::kBeginGathering:
      return "begin gathering";
    case TreeAction::kGatherUnusedForForward:
      return "gather unused for forward";
    case TreeAction::kGatherUnusedForBackward:
      return "gather unused for backward";
    case TreeAction::kBeginOrder:
      return "begin order";
    case TreeAction::kLeaveForward:
      return "leave forward";
    case TreeAction::kAwaitBackwardEnd:
      return "await backward end";
    case TreeAction::kEndModules:
      return "end modules";
    case TreeAction::kReduceModules:
      return "reduce modules";
    case TreeAction::kEndReductions:
      return "end reductions";
    case TreeAction::kFinish:
      return "finish";
  }
  return "?";
}

std::string TreeIteration::ToString() const {
  Parts parts;
  if (forwards > 0) parts.Add(absl::StrCat("runs forward ", forwards));
  if (casting_forwards > 0) {
    parts.Add(absl::StrCat("casts outputs ", casting_forwards));
  }
  if (in_backward) parts.Add("in backward");
  if (parts.text.empty()) parts.Add("at rest");
  if (has_compared_buffers) parts.Add("compared buffers");
  return parts.text;
}

std::string TreeTransition::ToString() const {
  return absl::StrCat(next.ToString(), ": ", Join(actions));
}

TreeTransition Transition(const TreeIteration& from, TreeEvent event,
                          const TreeFacts& facts) {
  using T = TreeAction;
  TreeTransition result{.next = from, .actions = {}};
  TreeIteration& next = result.next;
  const auto act = [&result](std::initializer_list<T> actions) {
    result.actions.insert(result.actions.end(), actions.begin(), actions.end());
  };
  switch (event) {
    case TreeEvent::kForwardBegins: {
      // The outermost of the tree, whichever module's it is, may follow an
      // optimizer's step.
      const bool outermost = ++next.forwards == 1;
      if (outermost) act({T::kFindRows});
      if (facts.of_root &&
          (!next.has_compared_buffers || facts.compares_replicas)) {
        next.has_compared_buffers = true;
        act({T::kCompareBuffers});
      }
      if (outermost) {
        act({T::kCheckAllSharded, T::kBeginGathering,
             T::kGatherUnusedForForward});
      }
      if (facts.of_root) act({T::kBeginOrder});
      break;
    }
    case TreeEvent::kForwardEnds:
      if (--next.forwards > 0) break;
      act({T::kForgetRows});
      // Where no backward comes, nothing that was gathered ahead of modules
      // stays after the outermost.
      if (!facts.backward_follows && !next.in_backward) act({T::kLeaveForward});
      break;
    case TreeEvent::kCastingForwardBegins:
      ++next.casting_forwards;
      break;
    case TreeEvent::kCastingForwardEnds:
      --next.casting_forwards;
      break;
    case TreeEvent::kBackwardBegins:
      if (std::exchange(next.in_backward, true)) break;
      act({T::kAwaitBackwardEnd, T::kGatherUnusedForBackward});
      break;
    case TreeEvent::kBackwardEnds:
      next.in_backward = false;
      act({T::kEndModules});
      if (facts.manual_finalization) break;
      act({T::kEndReductions});
      if (facts.is_last_backward) act({T::kFinish});
      break;
    case TreeEvent::kFinalizeIsAskedFor:
      act({T::kReduceModules});
      if (facts.manual_finalization) act({T::kEndReductions});
      break;
    case TreeEvent::kIsReset:
      next = {.has_compared_buffers = from.has_compared_buffers};
      break;
  }
  return result;
}

}  // namespace crosshatch::fsdp
