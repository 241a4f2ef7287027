// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/local/local_hub.h"

#include <chrono>
#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "crosshatch/comm/fingerprint.h"
#include "crosshatch/comm/local/late_wait.h"
#include "crosshatch/comm/local/local_planes.h"
#include "crosshatch/comm/watch_clock.h"
#include "crosshatch/tensor/kernels/kernel_table.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::internal {
namespace {

using ::testing::HasSubstr;

/// A hub whose ranks and watchdog the test controls.
class Job {
 public:
  explicit Job(int ranks) : hub(ranks) {
    for (int r = 0; r < ranks; ++r) {
      contexts_.push_back(std::make_unique<RankContext>(RankContextOptions{
          .world_rank = r, .world_size = ranks, .wait_graph = &hub.graph()}));
      hub.Enter(*contexts_.back());
    }
  }

  std::shared_ptr<LocalGroup> Group(const std::string& name,
                                    std::vector<int> ranks,
                                    absl::Duration timeout = absl::Seconds(1)) {
    return hub.Group(
        {.name = name, .world_ranks = std::move(ranks), .stream_name = "s"},
        timeout);
  }

  /// Runs the watchdog once, `later` after the previous time.
  void LookAfter(absl::Duration later) {
    real_ += absl::ToChronoNanoseconds(later);
    hub.CheckDeadlines(clock_.Look(real_));
  }

  /// Releases all waiting ranks, even if the watchdog has not found them.
  void Release() { hub.FailRank(0, absl::CancelledError("the test ends")); }

  std::string failure() { return std::string(hub.failure().message()); }

  LocalHub hub;

 private:
  std::vector<std::unique_ptr<RankContext>> contexts_;
  WatchClock clock_{/*longest_step=*/absl::Seconds(2)};
  SteadyTime real_ = SteadyTime::clock::now();
};

/// Returns when members of `group` wait for others.
void AwaitWaiters(LocalGroup& group) {
  const WatchMoment now{.real = SteadyTime::clock::now()};
  while (group.FindLate(now, absl::ZeroDuration()).empty()) {
    std::this_thread::yield();
  }
}

std::latch* summing = nullptr;
std::latch* may_end = nullptr;

KernelTable Kernels(bool blocks) {
  KernelTable kernels{};
  kernels.accumulate_ranks = [](const AccumulateRanksArgs&, KernelContext&) {};
  if (!blocks) return kernels;
  kernels.accumulate_ranks = [](const AccumulateRanksArgs&, KernelContext&) {
    summing->count_down();
    may_end->wait();
  };
  return kernels;
}

/// Ranks that are threads send one another nothing.
class NoPayloads final : public Payloads {
 public:
  absl::string_view Of(int) const override { return ""; }
};

/// Returns when rank 1 alone has not come to its barrier.
void AwaitTheOtherAtTheBarrier(LocalGroup& group) {
  group.FindLate({.counted = absl::ZeroDuration()}, absl::ZeroDuration());
  std::vector<LateWait> late;
  while (late.empty() || late[0].missing != std::vector<int>{1}) {
    std::this_thread::yield();
    late = group.FindLate({.counted = absl::Seconds(6)}, absl::ZeroDuration());
  }
}

TEST(LocalHubTest, NamesTheMemberThatHasMetTheOthersAndDoesNotLeave) {
  std::latch at_it(1);
  std::latch end(1);
  summing = &at_it;
  may_end = &end;
  Job job(2);
  const auto group = job.Group("tp", {0, 1});
  std::vector<std::thread> ranks;
  for (int r = 0; r < 2; ++r) {
    ranks.emplace_back([&, r] {
      float data[2] = {};
      Collective collective{.kind = CollectiveKind::kAllReduce, .label = "x"};
      collective.send = {{{.data = data, .run_elems = 2}}};
      collective.recv = collective.send;
      Fingerprint fingerprint;
      fingerprint.Assign(collective, 40);
      const KernelTable kernels = Kernels(r == 1);
      const auto plane = MakeMemoryPlane(group, r, kernels);
      Stream& stream = RankContext::Current().compute_stream();
      group->slots[r].fingerprint = &fingerprint;
      plane->Offer(collective, [](int, int64_t) -> char* { return nullptr; });
      EXPECT_EQ(group->collectives.Agree(r, fingerprint), absl::OkStatus());
      EXPECT_EQ(plane->Issue(collective, 40, NoPayloads(), stream),
                absl::OkStatus());
    });
  }
  at_it.wait();
  AwaitTheOtherAtTheBarrier(*group);
  for (int i = 0; i < 3; ++i) job.LookAfter(absl::Seconds(2));
  EXPECT_EQ(job.failure(), "") << "4 s are no time for a copy";
  for (int i = 0; i < 2; ++i) job.LookAfter(absl::Seconds(2));
  end.count_down();
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(job.hub.failure().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(job.failure(),
            "group 'tp' (ranks 0, 1) timed out after 1s: rank 1 met the others "
            "in all_reduce #40 'x' (f32, sum) and does not end its part of it");
}

TEST(LocalHubTest, NamesTheGroupThatKeepsTheOthersWaiting) {
  Job job(3);
  const auto fsdp = job.Group("fsdp", {0, 2});
  const auto tp = job.Group("tp", {0, 1});
  const auto wait = [](LocalGroup& group, int member, const std::string& what) {
    return std::thread([&group, member, what] {
      EXPECT_FALSE(group.exchanges.Gather(member, "", what).ok());
    });
  };
  std::thread rank_2 = wait(*fsdp, 1, "the weights");
  AwaitWaiters(*fsdp);
  job.LookAfter(absl::ZeroDuration());
  job.LookAfter(absl::Milliseconds(300));
  // Later than rank 2, so that rank 2 times out first.
  std::thread rank_0 = wait(*tp, 0, "the sum");
  AwaitWaiters(*tp);
  job.LookAfter(absl::Milliseconds(100));
  job.LookAfter(absl::Milliseconds(590));
  EXPECT_EQ(job.failure(), "");
  job.LookAfter(absl::Milliseconds(20));
  const std::string failure = job.failure();
  job.Release();
  rank_2.join();
  rank_0.join();
  EXPECT_EQ(failure,
            "group 'tp' (ranks 0, 1) timed out after 1s: rank 0 came to the "
            "sum, rank 1 did not come; besides, group 'fsdp' (ranks 0, 2) "
            "waits: rank 2 came to the weights, rank 0 did not come");
}

TEST(LocalHubTest, NamesTheGroupOfTheShorterTimeout) {
  Job job(3);
  const auto fsdp = job.Group("fsdp", {0, 2}, absl::Hours(1));
  const auto tp = job.Group("tp", {0, 1});
  const auto wait = [](LocalGroup& group, int member, const std::string& what) {
    return std::thread([&group, member, what] {
      EXPECT_FALSE(group.exchanges.Gather(member, "", what).ok());
    });
  };
  // Rank 1 waits for rank 0, and rank 0 for rank 2.
  std::thread rank_0 = wait(*fsdp, 0, "the weights");
  std::thread rank_1 = wait(*tp, 1, "the sum");
  AwaitWaiters(*fsdp);
  AwaitWaiters(*tp);
  job.LookAfter(absl::ZeroDuration());
  job.LookAfter(absl::Milliseconds(990));
  EXPECT_EQ(job.failure(), "");
  job.LookAfter(absl::Milliseconds(20));
  const std::string failure = job.failure();
  job.Release();
  rank_0.join();
  rank_1.join();
  EXPECT_EQ(failure,
            "group 'tp' (ranks 0, 1) timed out after 1s: rank 1 came to the "
            "sum, rank 0 did not come; besides, group 'fsdp' (ranks 0, 2) "
            "waits: rank 0 came to the weights, rank 2 did not come");
}

TEST(LocalHubTest, TimeInWhichTheProcessStoodStillDoesNotCount) {
  Job job(2);
  const auto group = job.Group("all", {0, 1});
  std::thread waiter(
      [&] { EXPECT_FALSE(group->exchanges.Gather(0, "", "it").ok()); });
  AwaitWaiters(*group);
  WatchClock clock(absl::Milliseconds(100));
  SteadyTime real = SteadyTime::clock::now();
  const auto look = [&](absl::Duration later) {
    real += absl::ToChronoNanoseconds(later);
    job.hub.CheckDeadlines(clock.Look(real));
  };
  look(absl::ZeroDuration());
  look(absl::Hours(1));
  look(absl::Hours(1));
  EXPECT_EQ(job.failure(), "");
  for (int i = 0; i < 11; ++i) look(absl::Milliseconds(100));
  const std::string failure = job.failure();
  job.Release();
  waiter.join();
  EXPECT_THAT(failure, HasSubstr("timed out after 1s"));
}

TEST(WatchClockTest, CountsWhatWasBeforeItsFirstLookUpToAStep) {
  WatchClock clock(absl::Seconds(2));
  const SteadyTime begin = SteadyTime::clock::now();
  const WatchMoment now = clock.Look(begin + std::chrono::hours(1));
  EXPECT_EQ(now.BeginOf(begin), absl::Seconds(-2));
  EXPECT_EQ(now.BeginOf(now.real - std::chrono::seconds(1)), absl::Seconds(-1));
}

LateWait Wait(const std::string& group, int seconds, std::vector<int> waiting,
              std::vector<int> missing, bool met = false) {
  return {.group = group,
          .age = absl::Seconds(seconds),
          .met = met,
          .waiting = std::move(waiting),
          .missing = std::move(missing),
          .text = "-"};
}

TEST(LateWaitTest, TheRootIsTheWaitThatNoOtherExplains) {
  EXPECT_EQ(RootOf({Wait("a", 9, {2}, {0}), Wait("b", 8, {0}, {1}),
                    Wait("c", 7, {3}, {2})}),
            1u);
  // The oldest of several roots.
  EXPECT_EQ(RootOf({Wait("a", 3, {2}, {0}), Wait("b", 8, {3}, {1})}), 1u);
  // A cycle of ranks; the waits do not contain their streams.
  EXPECT_EQ(RootOf({Wait("a", 3, {1}, {0}), Wait("b", 8, {0}, {1})}), 1u);
  // Members that have met wait for no other member.
  EXPECT_EQ(RootOf({Wait("a", 9, {2}, {3}), Wait("b", 6, {}, {1}, true),
                    Wait("c", 8, {1}, {2})}),
            1u);
}

TEST(LateWaitTest, NamesTheRootAndThreeOthers) {
  std::vector<LateWait> late = {Wait("a", 9, {2}, {0})};
  for (const char* group : {"b", "c", "d", "e", "f"}) {
    late.push_back(Wait(group, 8, {3}, {1}));
  }
  EXPECT_EQ(DescribeLate(late, RootOf(late), absl::Seconds(1)),
            "a timed out after 1s: -; besides, b waits: -; besides, c waits: "
            "-; besides, d waits: -; and 2 more");
}

}  // namespace
}  // namespace crosshatch::internal
