// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/fsdp/iteration.h"

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace crosshatch::fsdp {
namespace {

using A = ModuleAction;
using E = ModuleEvent;

std::string Go(ModuleIteration& at, E event, const ModuleFacts& facts = {}) {
  const ModuleTransition transition = Transition(at, event, facts);
  at = transition.next;
  return absl::StrCat(Name(event), " -> ", transition.ToString());
}

TEST(ModuleIterationTest, OneStep) {
  ModuleIteration at;
  EXPECT_EQ(at.ToString(), "at rest");
  EXPECT_EQ(Go(at, E::kGatheredAheadOfForward),
            "gathered ahead of forward -> gathered ahead of forward: unshard");
  EXPECT_EQ(Go(at, E::kForwardBegins),
            "forward begins -> runs forward 1, in forward: begin forward in "
            "tree, follow trainability, unshard, prefetch forward, wait, watch "
            "inputs, begin forward span");
  EXPECT_EQ(Go(at, E::kForwardEnds),
            "forward ends -> at rest: end forward span, record forward, "
            "reshard after forward, end forward in tree");
  EXPECT_EQ(Go(at, E::kBackwardBegins),
            "backward begins -> in backward, computes backward: begin backward "
            "in tree, unshard, prefetch backward, wait, begin backward span");
  EXPECT_EQ(Go(at, E::kGroupIsComplete),
            "group is complete -> in backward, computes backward: reduce "
            "group, reshard group");
  EXPECT_EQ(Go(at, E::kGroupIsNeededAgain),
            "group is needed again -> in backward, computes backward: unshard "
            "group");
  EXPECT_EQ(Go(at, E::kBackwardIsComplete),
            "backward is complete -> in backward: reshard, end backward span");
  EXPECT_EQ(Go(at, E::kGroupBackwardEnds),
            "backward ends for group -> in backward: reduce group, reshard "
            "group, end group");
  EXPECT_EQ(Go(at, E::kBackwardEnds), "backward ends -> at rest: ");
}

TEST(ModuleIterationTest, AListWaitsForItsLast) {
  ModuleIteration at;
  Go(at, E::kForwardBegins);
  EXPECT_EQ(Go(at, E::kForwardEnds, {.frees = false}),
            "forward ends -> in forward: end forward span, record forward, end "
            "forward in tree");
  // The second of the list prefetches nothing.
  EXPECT_EQ(Go(at, E::kForwardBegins, {.is_root = true}),
            "forward begins -> runs forward 1, in forward: begin forward in "
            "tree, follow trainability, unshard, wait, watch inputs, begin "
            "forward span");
  Go(at, E::kForwardEnds, {.frees = false});
  EXPECT_EQ(Go(at, E::kOutermostForwardEnds),
            "outermost forward ends -> at rest: reshard");
}

TEST(ModuleIterationTest, AForwardWithinOneDoesNothing) {
  ModuleIteration at;
  Go(at, E::kForwardBegins);
  EXPECT_EQ(Go(at, E::kForwardBegins),
            "forward begins -> runs forward 2, in forward: ");
  EXPECT_EQ(Go(at, E::kForwardEnds),
            "forward ends -> runs forward 1, in forward: ");
}

TEST(ModuleIterationTest, WhatIsGatheredForTheNextBackwardWaits) {
  ModuleIteration at;
  const ModuleFacts not_last = {.is_last_backward = false};
  Go(at, E::kGatheredAheadOfBackward, not_last);
  EXPECT_EQ(Go(at, E::kGroupBackwardEnds, not_last),
            "backward ends for group -> gathered ahead of backward: reduce "
            "group, end group");
  EXPECT_EQ(Go(at, E::kBackwardEnds, not_last),
            "backward ends -> gathered ahead of backward: ");
  EXPECT_EQ(Go(at, E::kGroupBackwardEnds),
            "backward ends for group -> gathered ahead of backward: reduce "
            "group, reshard group, end group");
  EXPECT_EQ(Go(at, E::kBackwardEnds), "backward ends -> at rest: ");
}

TEST(ModuleIterationTest, WhereRanksMayDifferNothingIsFreedOrReducedBefore) {
  ModuleIteration at;
  const ModuleFacts differ = {.ranks_may_differ = true};
  Go(at, E::kForwardBegins, differ);
  EXPECT_EQ(Go(at, E::kForwardEnds, differ),
            "forward ends -> at rest: end forward span, record forward, end "
            "forward in tree");
  Go(at, E::kBackwardBegins, differ);
  EXPECT_EQ(Go(at, E::kGroupIsComplete, differ),
            "group is complete -> in backward, computes backward: ");
  EXPECT_EQ(Go(at, E::kBackwardIsComplete, differ),
            "backward is complete -> in backward: end backward span");
}

// Every state that the machine can be in, every event, every combination of
// facts.
void Sweep(
    const std::function<void(const ModuleIteration&, E, const ModuleFacts&,
                             const ModuleTransition&)>& check) {
  for (int forwards = 0; forwards < 3; ++forwards) {
    for (int flags = 0; flags < 8; ++flags) {
      for (const Ahead ahead :
           {Ahead::kOfNothing, Ahead::kOfForward, Ahead::kOfBackward}) {
        const ModuleIteration from = {
            .forwards = forwards,
            .in_forward = (flags & 1) != 0 || forwards > 0,
            .in_backward = (flags & 2) != 0 || (flags & 4) != 0,
            .computes_backward = (flags & 4) != 0,
            .ahead = ahead};
        for (int e = 0; e < kNumModuleEvents; ++e) {
          const E event = static_cast<E>(e);
          if (event == E::kForwardEnds && forwards == 0) continue;
          // They change nothing else.
          if (event == E::kSummonBegins || event == E::kSummonEnds) continue;
          for (int bits = 0; bits < 4096; ++bits) {
            const auto bit = [bits](int i) { return (bits >> i & 1) != 0; };
            const ModuleFacts facts = {.is_root = bit(0),
                                       .reshards_after_forward = bit(1),
                                       .reshards_after_backward = bit(2),
                                       .unshards_in_backward = bit(3),
                                       .ranks_may_differ = bit(4),
                                       .is_last_backward = bit(5),
                                       .manual_finalization = bit(6),
                                       .backward_follows = bit(7),
                                       .frees = bit(8),
                                       .trains_all = bit(9),
                                       .passes_gradients = bit(10),
                                       .gathers = bit(11)};
            check(from, event, facts, Transition(from, event, facts));
          }
        }
      }
    }
  }
}

bool Has(const ModuleTransition& transition, A action) {
  return std::count(transition.actions.begin(), transition.actions.end(),
                    action) > 0;
}

TEST(ModuleIterationTest, KeepsItsInvariantsInEveryState) {
  int failures = 0;
  Sweep([&](const ModuleIteration& from, E event, const ModuleFacts& facts,
            const ModuleTransition& t) {
    const bool of_group =
        event == E::kGroupIsComplete || event == E::kGroupBackwardEnds ||
        event == E::kGroupIsFinalized || event == E::kGroupIsReset ||
        event == E::kGroupIsNeededAgain;
    // Groups are touched by events that are of one.
    bool ok = of_group || !(Has(t, A::kReduceGroup) || Has(t, A::kEndGroup) ||
                            Has(t, A::kReshardGroup) ||
                            Has(t, A::kResetGroup) || Has(t, A::kUnshardGroup));
    // By hand means that nothing else reduces.
    ok = ok && !(facts.manual_finalization && Has(t, A::kReduceGroup) &&
                 event != E::kGroupIsFinalized);
    // One order on all ranks: nothing that depends on what ran.
    ok = ok && !(facts.ranks_may_differ && event == E::kGroupIsComplete &&
                 !t.actions.empty());
    ok =
        ok && !(facts.ranks_may_differ &&
                (event == E::kForwardEnds || event == E::kBackwardIsComplete) &&
                (Has(t, A::kReshard) || Has(t, A::kReshardAfterForward)));
    // What is used has been gathered and waited for, in this order.
    const auto place = [&t](A action) {
      return std::find(t.actions.begin(), t.actions.end(), action) -
             t.actions.begin();
    };
    ok = ok && !(Has(t, A::kWait) && place(A::kUnshard) > place(A::kWait));
    ok = ok && !(event == E::kForwardBegins && from.forwards == 0 &&
                 !Has(t, A::kWait));
    // Freed is free: nobody is waited for.
    ok = ok && !(Has(t, A::kReshard) && t.next.ahead != Ahead::kOfNothing);
    // What is frozen and may be needed yet is not freed.
    ok = ok && !(event == E::kGroupIsComplete && !facts.trains_all &&
                 Has(t, A::kReshardGroup));
    ok = ok && !(event == E::kBackwardIsComplete && facts.passes_gradients &&
                 Has(t, A::kReshard));
    // A span that begins ends: the state knows which is open.
    ok = ok && (t.next.computes_backward ==
                ((from.computes_backward || Has(t, A::kBeginBackwardSpan)) &&
                 !Has(t, A::kEndBackwardSpan)));
    ok = ok && (t.next.in_backward || !t.next.computes_backward);
    ok = ok && t.next.forwards >= 0;
    if (event == E::kIsReset) ok = ok && t.next == ModuleIteration();
    if (event == E::kBackwardEnds) {
      ok = ok && !t.next.in_backward && !t.next.in_forward;
    }
    if (!ok && ++failures < 10) {
      ADD_FAILURE() << from.ToString() << ", " << Name(event) << " -> "
                    << t.ToString();
    }
  });
  EXPECT_EQ(failures, 0);
}

TEST(ModuleIterationTest, WhatIsSummonedStaysSoUntilItIsGivenBack) {
  ModuleIteration at;
  EXPECT_EQ(Go(at, E::kSummonBegins), "summon begins -> summoned: ");
  EXPECT_EQ(Go(at, E::kIsReset), "is reset -> summoned: ");
  EXPECT_EQ(Go(at, E::kSummonEnds), "summon ends -> at rest: ");
}

std::string Go(TreeIteration& at, TreeEvent event,
               const TreeFacts& facts = {}) {
  const TreeTransition transition = Transition(at, event, facts);
  at = transition.next;
  return absl::StrCat(Name(event), " -> ", transition.ToString());
}

TEST(TreeIterationTest, OneStep) {
  // Buffers have been compared in an earlier one.
  TreeIteration at = {.has_compared_buffers = true};
  EXPECT_EQ(Go(at, TreeEvent::kForwardBegins, {.of_root = true}),
            "forward begins -> runs forward 1, compared buffers: find rows, "
            "check all sharded, begin gathering, gather unused for forward, "
            "begin order");
  EXPECT_EQ(Go(at, TreeEvent::kForwardBegins),
            "forward begins -> runs forward 2, compared buffers: ");
  EXPECT_EQ(Go(at, TreeEvent::kForwardEnds, {.backward_follows = false}),
            "forward ends -> runs forward 1, compared buffers: ");
  EXPECT_EQ(Go(at, TreeEvent::kForwardEnds),
            "forward ends -> at rest, compared buffers: forget rows");
  EXPECT_EQ(Go(at, TreeEvent::kBackwardBegins),
            "backward begins -> in backward, compared buffers: await backward "
            "end, gather unused for backward");
  EXPECT_EQ(Go(at, TreeEvent::kBackwardBegins),
            "backward begins -> in backward, compared buffers: ");
  EXPECT_EQ(Go(at, TreeEvent::kBackwardEnds),
            "backward ends -> at rest, compared buffers: end modules, end "
            "reductions, finish");
}

TEST(TreeIterationTest, BuffersAreComparedBeforeTheFirstForwardOfTheRoot) {
  TreeIteration at;
  Go(at, TreeEvent::kForwardBegins);
  EXPECT_EQ(Go(at, TreeEvent::kForwardBegins, {.of_root = true}),
            "forward begins -> runs forward 2, compared buffers: compare "
            "buffers, begin order");
  // An iteration that is left was no reason to ask again.
  EXPECT_EQ(Go(at, TreeEvent::kIsReset),
            "is reset -> at rest, compared buffers: ");
  EXPECT_EQ(
      Go(at, TreeEvent::kForwardBegins,
         {.of_root = true, .compares_replicas = true}),
      "forward begins -> runs forward 1, compared buffers: find rows, compare "
      "buffers, check all sharded, begin gathering, gather unused for "
      "forward, begin order");
}

TEST(TreeIterationTest, EndsAsItsSettingsSay) {
  TreeIteration at;
  EXPECT_EQ(Go(at, TreeEvent::kBackwardEnds, {.is_last_backward = false}),
            "backward ends -> at rest: end modules, end reductions");
  EXPECT_EQ(Go(at, TreeEvent::kBackwardEnds, {.manual_finalization = true}),
            "backward ends -> at rest: end modules");
  EXPECT_EQ(
      Go(at, TreeEvent::kFinalizeIsAskedFor, {.manual_finalization = true}),
      "finalize is asked for -> at rest: reduce modules, end reductions");
  EXPECT_EQ(Go(at, TreeEvent::kFinalizeIsAskedFor),
            "finalize is asked for -> at rest: reduce modules");
  EXPECT_EQ(Go(at, TreeEvent::kCastingForwardBegins),
            "casting forward begins -> casts outputs 1: ");
  EXPECT_EQ(Go(at, TreeEvent::kCastingForwardEnds),
            "casting forward ends -> at rest: ");
  Go(at, TreeEvent::kForwardBegins);
  EXPECT_EQ(Go(at, TreeEvent::kForwardEnds, {.backward_follows = false}),
            "forward ends -> at rest: forget rows, leave forward");
}

TEST(TreeIterationTest, KeepsItsInvariantsInEveryState) {
  for (int forwards = 0; forwards < 3; ++forwards) {
    for (int e = 0; e < kNumTreeEvents; ++e) {
      for (int bits = 0; bits < 128; ++bits) {
        const auto bit = [bits](int i) { return (bits >> i & 1) != 0; };
        const TreeEvent event = static_cast<TreeEvent>(e);
        const TreeIteration from = {.forwards = forwards,
                                    .casting_forwards = forwards,
                                    .in_backward = bit(0),
                                    .has_compared_buffers = bit(5)};
        const bool ends = event == TreeEvent::kForwardEnds ||
                          event == TreeEvent::kCastingForwardEnds;
        if (ends && forwards == 0) continue;
        const TreeFacts facts = {.of_root = bit(1),
                                 .compares_replicas = bit(6),
                                 .backward_follows = bit(2),
                                 .is_last_backward = bit(3),
                                 .manual_finalization = bit(4)};
        const TreeTransition t = Transition(from, event, facts);
        SCOPED_TRACE(absl::StrCat(from.ToString(), ", ", Name(event), " -> ",
                                  t.ToString()));
        const auto has = [&t](TreeAction action) {
          return std::count(t.actions.begin(), t.actions.end(), action) > 0;
        };
        // Gathers that follow an optimizer's step, once for a forward.
        EXPECT_EQ(has(TreeAction::kBeginGathering),
                  event == TreeEvent::kForwardBegins && forwards == 0);
        // The end of a backward is awaited once.
        EXPECT_EQ(has(TreeAction::kAwaitBackwardEnd),
                  event == TreeEvent::kBackwardBegins && !from.in_backward);
        // Compute waits only where gradients are whole.
        EXPECT_EQ(has(TreeAction::kFinish),
                  event == TreeEvent::kBackwardEnds && bit(3) && !bit(4));
        // What backward is to find gathered is not freed beneath it.
        EXPECT_FALSE(has(TreeAction::kLeaveForward) && from.in_backward);
        EXPECT_GE(t.next.forwards, 0);
        // Buffers are compared once, or with every forward of the root.
        EXPECT_EQ(has(TreeAction::kCompareBuffers),
                  event == TreeEvent::kForwardBegins && bit(1) &&
                      (!bit(5) || bit(6)));
        EXPECT_EQ(t.next.has_compared_buffers,
                  bit(5) || has(TreeAction::kCompareBuffers));
        // The rows of the batch are known while a forward runs.
        EXPECT_EQ(has(TreeAction::kFindRows),
                  event == TreeEvent::kForwardBegins && forwards == 0);
        EXPECT_EQ(has(TreeAction::kForgetRows),
                  event == TreeEvent::kForwardEnds && forwards == 1);
        if (event == TreeEvent::kIsReset) {
          EXPECT_EQ(t.next, TreeIteration{.has_compared_buffers = bit(5)});
        }
      }
    }
  }
}

}  // namespace
}  // namespace crosshatch::fsdp
