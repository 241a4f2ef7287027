// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/base/wait_graph.h"

#include <algorithm>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

/// A graph that records the agents notified of a stall, and the reasons.
class Recorder {
 public:
  AgentId Host(int rank) { return graph.AddAgent(rank, "host", kNoAgent); }
  AgentId Queue(int rank, const std::string& name, AgentId host) {
    return graph.AddAgent(rank, name, host);
  }
  void Wait(AgentId agent, std::vector<AgentId> awaited,
            const std::string& what = "x") {
    graph.BeginWait(agent, awaited, what,
                    [this, agent](const std::string& reason) {
                      stalled.push_back(agent);
                      reasons.push_back(reason);
                    });
  }

  WaitGraph graph;
  std::vector<AgentId> stalled;
  std::vector<std::string> reasons;
};

TEST(WaitGraph, WaitForARunningAgentIsNoStall) {
  Recorder r;
  const AgentId a = r.Host(0), b = r.Host(1);
  r.Wait(a, {b});
  EXPECT_THAT(r.stalled, IsEmpty());
}

TEST(WaitGraph, CycleNotifiesBothWithAReadableChain) {
  Recorder r;
  const AgentId a = r.Host(0), b = r.Host(1);
  r.Wait(a, {b}, "all_reduce #0 of x");
  r.Wait(b, {a}, "all_gather #3 of y");
  EXPECT_THAT(r.stalled, ElementsAre(a, b));
  EXPECT_EQ(r.reasons[0],
            "rank 0 (host) waits for rank 1 (host) in all_reduce #0 of x; "
            "rank 1 (host) waits for rank 0 (host) in all_gather #3 of y; "
            "rank 0 (host) closes the cycle");
}

TEST(WaitGraph, FinishedAgentStallsThoseThatReachIt) {
  Recorder r;
  const AgentId a = r.Host(0), b = r.Host(1), c = r.Host(2);
  r.Wait(a, {b}, "gather");
  r.Wait(b, {c}, "sum");
  EXPECT_THAT(r.stalled, IsEmpty());
  r.graph.SetFinished(c);
  EXPECT_THAT(r.stalled, UnorderedElementsAre(a, b));
  EXPECT_EQ(r.reasons[0],
            "rank 2 (host) has finished; rank 0 (host) waits for rank 1 (host) "
            "in gather; rank 1 (host) waits for rank 2 (host) in sum");
}

TEST(WaitGraph, IdleQueueWaitsForItsIssuer) {
  Recorder r;
  const AgentId h0 = r.Host(0), h1 = r.Host(1);
  const AgentId q0 = r.Queue(0, "fsdp", h0), q1 = r.Queue(1, "fsdp", h1);
  r.graph.SetIdle(q1);
  r.Wait(q0, {q1}, "unshard");
  EXPECT_THAT(r.stalled, IsEmpty()) << "host 1 may still issue";
  r.Wait(h1, {h0}, "exchange");
  EXPECT_THAT(r.stalled, IsEmpty()) << "host 0 runs";
  r.graph.BeginWait(h0, {q0}, "an event", nullptr);
  EXPECT_THAT(r.stalled, UnorderedElementsAre(q0, h1));
  EXPECT_THAT(r.reasons[1], HasSubstr("rank 1 (fsdp) has no work until rank 1 "
                                      "(host) issues some"));
}

TEST(WaitGraph, EveryAwaitedAgentMustCome) {
  Recorder r;
  const AgentId a = r.Host(0), b = r.Host(1), c = r.Host(2);
  r.graph.SetFinished(c);
  r.Wait(a, {b, c});
  EXPECT_THAT(r.stalled, ElementsAre(a)) << "b running does not help";
}

TEST(WaitGraph, AnEndedWaitIsNoEdge) {
  Recorder r;
  const AgentId a = r.Host(0), b = r.Host(1);
  r.Wait(a, {b});
  r.graph.EndWait(a);
  r.graph.EndWait(a);
  r.Wait(b, {a});
  EXPECT_THAT(r.stalled, IsEmpty());
}

TEST(WaitGraph, UpdateMovesTheEdges) {
  Recorder r;
  const AgentId a = r.Host(0), b = r.Host(1), c = r.Host(2);
  r.Wait(a, {b, c});
  r.graph.UpdateWait(a, {c});
  r.Wait(b, {a});
  EXPECT_THAT(r.stalled, IsEmpty());
  r.graph.UpdateWait(a, {b});
  EXPECT_THAT(r.stalled, UnorderedElementsAre(a, b));
}

TEST(WaitGraph, IssuingToABlockedQueueLeavesItBlocked) {
  Recorder r;
  const AgentId h0 = r.Host(0), h1 = r.Host(1);
  const AgentId q0 = r.Queue(0, "q", h0);
  r.Wait(q0, {h1});
  r.graph.SetRunning(q0);
  r.graph.SetFinished(h1);
  EXPECT_THAT(r.stalled, ElementsAre(q0));
}

TEST(WaitGraph, CallbacksRunAfterALockIsReleased) {
  WaitGraph graph;
  const AgentId a = graph.AddAgent(0, "host", kNoAgent);
  std::mutex mutex;
  bool told = false;
  {
    WaitGraph::Stalls stalls;
    std::lock_guard lock(mutex);
    stalls = graph.BeginWait(a, {a}, "itself", [&](const std::string&) {
      std::lock_guard inner(mutex);
      graph.EndWait(a);
      told = true;
    });
    EXPECT_FALSE(told);
  }
  EXPECT_TRUE(told);
}

/// Defines stuck agents directly, but slowly. An agent can go on if it runs, is
/// an idle queue whose issuer can go on, or waits for agents that all can.
class Reference {
 public:
  enum State { kRunning, kIdle, kWaiting, kFinished };
  struct Agent {
    AgentId issuer;
    State state = kRunning;
    std::vector<AgentId> awaited;
  };

  std::set<AgentId> StuckWaiters() const {
    std::vector<bool> free(agents.size());
    for (bool changed = true; changed;) {
      changed = false;
      for (size_t i = 0; i < agents.size(); ++i) {
        if (free[i] || !CanGoOn(agents[i], free)) continue;
        free[i] = changed = true;
      }
    }
    std::set<AgentId> stuck;
    for (size_t i = 0; i < agents.size(); ++i) {
      if (!free[i] && agents[i].state == kWaiting) stuck.insert(i);
    }
    return stuck;
  }

  std::vector<Agent> agents;

 private:
  static bool CanGoOn(const Agent& agent, const std::vector<bool>& free) {
    switch (agent.state) {
      case kRunning:
        return true;
      case kFinished:
        return false;
      case kIdle:
        return free[agent.issuer];
      case kWaiting:
        return std::all_of(agent.awaited.begin(), agent.awaited.end(),
                           [&](AgentId id) { return free[id]; });
    }
    return false;
  }
};

TEST(WaitGraph, FindsExactlyTheStallsOfTheReference) {
  for (uint32_t seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    Recorder r;
    Reference reference;
    const int ranks = 2 + random() % 3;
    for (int rank = 0; rank < ranks; ++rank) {
      const AgentId host = r.Host(rank);
      reference.agents.push_back({kNoAgent});
      for (const char* name : {"a", "b"}) {
        r.Queue(rank, name, host);
        reference.agents.push_back({host});
      }
    }
    const int n = static_cast<int>(reference.agents.size());
    for (int step = 0; step < 60; ++step) {
      const AgentId id = random() % n;
      Reference::Agent& agent = reference.agents[id];
      const auto pick = [&] {
        std::vector<AgentId> awaited;
        for (int i = 1 + random() % 2; i > 0; --i) {
          awaited.push_back(random() % n);
        }
        return awaited;
      };
      switch (random() % 8) {
        case 0:
        case 1:
        case 2:
          if (agent.state != Reference::kRunning) break;
          agent.state = Reference::kWaiting;
          agent.awaited = pick();
          r.Wait(id, agent.awaited);
          break;
        case 3:
          if (agent.state != Reference::kWaiting) break;
          agent.awaited = pick();
          r.graph.UpdateWait(id, agent.awaited);
          break;
        case 4:
        case 5:
          if (agent.state != Reference::kWaiting) break;
          agent.state = Reference::kRunning;
          r.graph.EndWait(id);
          break;
        case 6:
          if (agent.issuer == kNoAgent) break;
          if (agent.state == Reference::kRunning) {
            agent.state = Reference::kIdle;
            r.graph.SetIdle(id);
          } else if (agent.state == Reference::kIdle) {
            agent.state = Reference::kRunning;
            r.graph.SetRunning(id);
          }
          break;
        case 7:
          if (agent.state != Reference::kRunning || random() % 4 != 0) break;
          agent.state = Reference::kFinished;
          r.graph.SetFinished(id);
          break;
      }
      const std::set<AgentId> told(r.stalled.begin(), r.stalled.end());
      ASSERT_EQ(told, reference.StuckWaiters()) << "seed " << seed;
      ASSERT_EQ(told.size(), r.stalled.size()) << "told twice, seed " << seed;
      if (!told.empty()) break;
    }
  }
}

}  // namespace
}  // namespace crosshatch
