// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/local/rendezvous.h"

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "crosshatch/comm/local/late_wait.h"
#include "crosshatch/comm/local/wake_word.h"
#include "crosshatch/comm/watch_clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::internal {
namespace {

using ::testing::HasSubstr;

void OnThreads(int n, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int i = 0; i < n; ++i) threads.emplace_back(body, i);
  for (std::thread& thread : threads) thread.join();
}

/// A rendezvous of n ranks' host threads.
struct Party {
  explicit Party(int n)
      : rendezvous(graph, "group 'x'", Ranks(n), Agents(n),
                   [this](const absl::Status& failure) {
                     broken = failure;
                     return failed_before.ok() ? failure : failed_before;
                   }) {}

  static std::vector<int> Ranks(int n) {
    std::vector<int> ranks;
    for (int i = 0; i < n; ++i) ranks.push_back(10 + i);
    return ranks;
  }
  std::vector<AgentId> Agents(int n) {
    for (int i = 0; i < n; ++i) {
      agents.push_back(graph.AddAgent(10 + i, "host", kNoAgent));
    }
    return agents;
  }
  absl::Status Meet(int member, const std::string& what = "a step") {
    return rendezvous.Agree(member, {.sequence = -1, .label = what});
  }

  WaitGraph graph;
  std::vector<AgentId> agents;
  absl::Status broken;
  absl::Status failed_before;
  Rendezvous rendezvous;
};

TEST(ThreadBarrier, NobodyLeavesBeforeAllHaveCome) {
  constexpr int kThreads = 4;
  ThreadBarrier barrier(kThreads);
  std::vector<int> came(kThreads);  // Not atomic: the barrier orders accesses.
  bool early = false;
  OnThreads(kThreads, [&](int i) {
    for (int round = 1; round <= 500; ++round) {
      came[i] = round;
      barrier.ArriveAndWait();
      for (int c : came) {
        if (c != round) early = true;
      }
      barrier.ArriveAndWait();
    }
  });
  EXPECT_FALSE(early);
}

// A member that left because of the failure appears to keep the others waiting,
// which must not be reported.
TEST(Rendezvous, MembersGetAnEarlierFailure) {
  Party party(2);
  party.failed_before = absl::InternalError("the first");
  party.graph.SetFinished(party.agents[1]);
  EXPECT_EQ(party.Meet(0), party.failed_before);
  EXPECT_TRUE(absl::IsFailedPrecondition(party.broken)) << party.broken;
}

TEST(Rendezvous, ShowsEachMemberWhatTheOthersWrote) {
  constexpr int kThreads = 4;
  Party party(kThreads);
  ThreadBarrier barrier(kThreads);
  std::vector<int> slots(kThreads);
  std::vector<int> wrong(kThreads);
  OnThreads(kThreads, [&](int i) {
    for (int round = 0; round < 500; ++round) {
      slots[i] = round * 10 + i;
      if (!party.Meet(i).ok()) ++wrong[i];
      for (int r = 0; r < kThreads; ++r) {
        if (slots[r] != round * 10 + r) ++wrong[i];
      }
      barrier.ArriveAndWait();
    }
  });
  EXPECT_THAT(wrong, testing::Each(0));
}

// A member that has its blobs may enter the next round at once.
TEST(Rendezvous, GathersTheBlobsOfAll) {
  constexpr int kThreads = 4;
  Party party(kThreads);
  const auto blob = [](int member, int round) {
    return std::string(static_cast<size_t>(member * 9), 'x') +
           std::to_string(round);
  };
  std::vector<int> wrong(kThreads);
  OnThreads(kThreads, [&](int i) {
    for (int round = 0; round < 500; ++round) {
      const auto blobs = party.rendezvous.Gather(i, blob(i, round), "sizes");
      for (int r = 0; r < kThreads; ++r) {
        if (!blobs.ok() || (*blobs)[r] != blob(r, round)) ++wrong[i];
      }
    }
  });
  EXPECT_THAT(wrong, testing::Each(0));
}

TEST(Rendezvous, DisagreementFailsAllForGood) {
  Party party(3);
  std::vector<absl::Status> results(3);
  OnThreads(3, [&](int i) { results[i] = party.Meet(i, i < 2 ? "a" : "b"); });
  const absl::Status differ = absl::FailedPreconditionError(
      "ranks of group 'x' disagree: rank 10 came to a, rank 12 to b");
  EXPECT_THAT(results, testing::Each(differ));
  EXPECT_EQ(party.broken, differ);
  EXPECT_EQ(party.Meet(0), differ);
}

TEST(Rendezvous, FailureFromOutsideReleasesThoseWhoWait) {
  Party party(2);
  OnThreads(2, [&](int i) {
    if (i == 1) {
      party.rendezvous.Fail(absl::UnavailableError("gone"));
      party.rendezvous.Fail(absl::UnavailableError("later"));
    } else {
      EXPECT_EQ(party.Meet(0), absl::UnavailableError("gone"));
    }
  });
  EXPECT_TRUE(party.broken.ok()) << "not found here";
}

TEST(Rendezvous, FailsWhenAMemberHasFinished) {
  Party party(3);
  OnThreads(3, [&](int i) {
    if (i == 2) {
      party.graph.SetFinished(party.agents[2]);
      return;
    }
    const absl::Status status = party.Meet(i);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()),
                testing::AllOf(HasSubstr("group 'x' can never go on: rank 12 "
                                         "(host) has finished; rank 1"),
                               HasSubstr("rank 12 did not come")));
  });
}

// Which of the collectives fails first depends on the threads; the reader needs
// what both are about.
TEST(Rendezvous, DescribesEachCollectiveOfACycleInFull) {
  Party party(2);
  Rendezvous other(party.graph, "group 'y'", Party::Ranks(2), party.agents,
                   [](const absl::Status& failure) { return failure; });
  const auto about = [](const char* text) {
    return std::make_shared<const std::string>(text);
  };
  OnThreads(2, [&](int i) {
    const absl::Status status =
        i == 0 ? party.rendezvous.Agree(
                     0, {.sequence = 3, .label = "a", .about = about("of a")})
               : other.Agree(
                     1, {.sequence = 3, .label = "b", .about = about("of b")});
    const std::string message(status.message());
    EXPECT_THAT(message, HasSubstr("barrier #3 'a' [of a]"));
    EXPECT_THAT(message, HasSubstr("barrier #3 'b' [of b]"));
    const std::string own = i == 0 ? "[of a]" : "[of b]";
    EXPECT_EQ(message.find(own), message.rfind(own)) << message;
  });
}

TEST(Rendezvous, FollowsAMemberToAnotherAgent) {
  Party party(2);
  const AgentId queue = party.graph.AddAgent(11, "queue", party.agents[1]);
  OnThreads(2, [&](int i) {
    if (i == 0) {
      EXPECT_FALSE(party.Meet(0).ok());
    } else {
      party.rendezvous.SetAgent(1, queue);
      // A host that waits for its queue while that is idle.
      party.graph.BeginWait(party.agents[1], {queue}, "event", nullptr);
      party.graph.SetIdle(queue);
    }
  });
}

TEST(Rendezvous, ShowsAWatchWhoHasWaitedForWhom) {
  Party party(3);
  const absl::Duration step = absl::Seconds(2);
  WatchClock clock(step);
  SteadyTime real = SteadyTime::clock::now();
  const auto find = [&](absl::Duration least) {
    real += absl::ToChronoNanoseconds(step);
    return party.rendezvous.FindLate(clock.Look(real), least);
  };
  EXPECT_FALSE(find(absl::ZeroDuration()).has_value());
  OnThreads(3, [&](int i) {
    if (i < 2) {
      EXPECT_EQ(party.Meet(i, "step " + std::to_string(i)),
                absl::UnavailableError("gone"));
      return;
    }
    std::optional<LateWait> late;
    while (!late.has_value() || late->waiting.size() < 2) {
      std::this_thread::yield();
      late = party.rendezvous.FindLate(clock.Look(real), absl::ZeroDuration());
    }
    EXPECT_LE(late->age, step) << "what was before the first look";
    EXPECT_FALSE(find(absl::Hours(1)).has_value());
    late = find(3 * step / 2);
    ASSERT_TRUE(late.has_value());
    EXPECT_EQ(late->group, "group 'x'");
    EXPECT_THAT(late->waiting, testing::ElementsAre(10, 11));
    EXPECT_THAT(late->missing, testing::ElementsAre(12));
    EXPECT_FALSE(late->met);
    EXPECT_EQ(late->text,
              "rank 10 came to step 0, rank 11 came to step 1, rank 12 did not "
              "come");
    party.rendezvous.Fail(absl::UnavailableError("gone"));
    EXPECT_FALSE(find(absl::ZeroDuration()).has_value());
  });
}

}  // namespace
}  // namespace crosshatch::internal
