// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/route.h"

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

/// Returns the elements of the list between members `from` and `to`, uneven and
/// sometimes none.
int64_t Count(CollectiveKind kind, int n, int from, int to) {
  switch (kind) {
    case CollectiveKind::kAllGather:
      return 7 * from % 5;
    case CollectiveKind::kReduceScatter:
      return 7 * to % 5;
    case CollectiveKind::kAllToAll:
      return (3 * from + to) % 4;
    default:
      return 2 * n + 1;
  }
}

/// One member's lists, each a segment at an address that it alone has.
struct Lists {
  Lists(CollectiveKind kind, int n, int me, int root) {
    collective.kind = kind;
    collective.root = root;
    memory.resize(100);
    const auto list = [&](int64_t count) -> SegmentList {
      used += count + 1;
      return {{.data = memory.data() + used - count, .run_elems = count}};
    };
    const bool per_peer_send = kind == CollectiveKind::kReduceScatter ||
                               kind == CollectiveKind::kAllToAll;
    const bool per_peer_recv =
        kind == CollectiveKind::kAllGather || kind == CollectiveKind::kAllToAll;
    const bool broadcasts = kind == CollectiveKind::kBroadcast;
    for (int r = 0; r < (per_peer_send ? n : 1); ++r) {
      if (broadcasts && me != root) break;
      collective.send.push_back(list(Count(kind, n, me, r)));
    }
    for (int r = 0; r < (per_peer_recv ? n : 1); ++r) {
      if (broadcasts && me == root) break;
      collective.recv.push_back(list(Count(kind, n, r, me)));
    }
  }

  std::vector<float> memory;
  int64_t used = 0;
  Collective collective;
};

/// The parts of all members.
struct Plan {
  explicit Plan(int n) : sends(n), receives(n) {}
  std::vector<Part> sends;
  std::vector<Part> receives;
};

void ExpectSame(const Part& part, const SegmentList& list, int64_t begin,
                int64_t elems) {
  EXPECT_EQ(part.list.data(), list.data());
  EXPECT_EQ(part.begin, begin);
  EXPECT_EQ(part.elems, elems);
}

constexpr CollectiveKind kKinds[] = {
    CollectiveKind::kAllGather, CollectiveKind::kReduceScatter,
    CollectiveKind::kAllReduce, CollectiveKind::kAllToAll,
    CollectiveKind::kBroadcast};

TEST(RouteTest, WhatOneMemberSendsTheOtherReceives) {
  for (const CollectiveKind kind : kKinds) {
    for (const int n : {1, 2, 3, 5}) {
      for (const bool in_pieces : {true, false}) {
        std::vector<Plan> plans(static_cast<size_t>(n), Plan(n));
        std::vector<Lists> lists;
        for (int me = 0; me < n; ++me) lists.emplace_back(kind, n, me, n - 1);
        for (int me = 0; me < n; ++me) {
          PlanParts(lists[me].collective, me, in_pieces,
                    absl::MakeSpan(plans[me].sends),
                    absl::MakeSpan(plans[me].receives));
        }
        for (int from = 0; from < n; ++from) {
          for (int to = 0; to < n; ++to) {
            // A root may have no recv list.
            const bool is_omitted =
                kind == CollectiveKind::kBroadcast && to == n - 1;
            EXPECT_EQ(plans[from].sends[to].elems,
                      is_omitted && from == n - 1
                          ? 2 * n + 1
                          : plans[to].receives[from].elems)
                << Name(kind) << " from " << from << " to " << to << " of "
                << n;
          }
        }
      }
    }
  }
}

TEST(RouteTest, PartsAreTheLists) {
  constexpr int kSize = 3;
  for (const int me : {0, 1, 2}) {
    Plan plan(kSize);
    const auto of = [&](const Lists& lists) -> const Collective& {
      PlanParts(lists.collective, me, /*in_pieces=*/true,
                absl::MakeSpan(plan.sends), absl::MakeSpan(plan.receives));
      return lists.collective;
    };
    const Lists gather(CollectiveKind::kAllGather, kSize, me, 0);
    const Lists scatter(CollectiveKind::kReduceScatter, kSize, me, 0);
    for (int r = 0; r < kSize; ++r) {
      const Collective& g = of(gather);
      ExpectSame(plan.sends[r], g.send[0], 0, 7 * me % 5);
      ExpectSame(plan.receives[r], g.recv[r], 0, 7 * r % 5);
      const Collective& s = of(scatter);
      ExpectSame(plan.sends[r], s.send[r], 0, 7 * r % 5);
      ExpectSame(plan.receives[r], s.recv[0], 0, 7 * me % 5);
    }
  }
}

TEST(RouteTest, AnAllReduceReducesPiecesAndGathersThem) {
  constexpr int kSize = 3;  // Of 7 elements: 2, 2 and 3.
  constexpr int64_t kBegins[] = {0, 2, 4, 7};
  for (const int me : {0, 1, 2}) {
    const Lists lists(CollectiveKind::kAllReduce, kSize, me, 0);
    const Collective& c = lists.collective;
    Plan plan(kSize);
    const auto length = [&](int r) { return kBegins[r + 1] - kBegins[r]; };
    PlanParts(c, me, /*in_pieces=*/true, absl::MakeSpan(plan.sends),
              absl::MakeSpan(plan.receives));
    for (int r = 0; r < kSize; ++r) {
      ExpectSame(plan.sends[r], c.send[0], kBegins[r], length(r));
      ExpectSame(plan.receives[r], c.recv[0], kBegins[me], length(me));
    }
    PlanGatherOfPieces(c, me, absl::MakeSpan(plan.sends),
                       absl::MakeSpan(plan.receives));
    for (int r = 0; r < kSize; ++r) {
      ExpectSame(plan.sends[r], c.recv[0], kBegins[me], length(me));
      ExpectSame(plan.receives[r], c.recv[0], kBegins[r], length(r));
    }
    PlanParts(c, me, /*in_pieces=*/false, absl::MakeSpan(plan.sends),
              absl::MakeSpan(plan.receives));
    for (int r = 0; r < kSize; ++r) {
      ExpectSame(plan.sends[r], c.send[0], 0, 7);
      ExpectSame(plan.receives[r], c.recv[0], 0, 7);
    }
  }
}

}  // namespace
}  // namespace crosshatch
