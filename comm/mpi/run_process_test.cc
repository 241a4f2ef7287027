// SPDX-License-Identifier: Apache-2.0
//
// How jobs in the engine of processes end, with threads as processes.

#include "crosshatch/comm/mpi/run_process.h"

#include <atomic>
#include <chrono>
#include <string>
#include <thread>

#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/mpi/run_loopback_testutil.h"
#include "crosshatch/comm/return_grace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::internal {
namespace {

using testing::HasSubstr;

MpiOptions Plain(int) { return {}; }

TEST(RunProcessTest, RefusesWhatCannotBe) {
  EXPECT_THAT(
      CheckOptions({.job = {.timeout = absl::ZeroDuration()}}).ToString(),
      HasSubstr("a timeout must be positive"));
  EXPECT_THAT(
      CheckOptions({.job = {.test = {.max_message_bytes = 7}}}).ToString(),
      HasSubstr("max_message_bytes must be from 8 to 2^30, not 7"));
  EXPECT_TRUE(CheckOptions({}).ok());
}

TEST(RunProcessTest, NothingOfAJobThatEndedWellIsOnItsWay) {
  LoopbackWire wire({.size = 3});
  wire.Hold(2, 1);
  std::atomic<int> returned = 0;
  const auto results = RunLoopback(
      wire, 3, [](World&) { return absl::OkStatus(); }, Plain,
      [&](int rank) {
        if (rank != 1 && ++returned == 2) wire.Release();
      });
  for (const ProcessResult& result : results) {
    EXPECT_TRUE(result.status.ok()) << result.status;
    EXPECT_TRUE(result.ended_together);
  }
  EXPECT_EQ(wire.num_unread(), 0);
}

TEST(RunProcessTest, AWaitForARankThatNeverJoinedEndsWhenItFinishes) {
  LoopbackWire wire({.size = 2});
  const auto results = RunLoopback(
      wire, 2,
      [](World& world) -> absl::Status {
        if (world.rank() == 1) return absl::OkStatus();
        LongGather gather(world);
        CH_RETURN_IF_ERROR(gather.Issue());
        return world.context().Synchronize();
      },
      [](int) { return MpiOptions{.job = {.timeout = absl::Seconds(5)}}; });
  EXPECT_THAT(results[0].status.ToString(),
              HasSubstr("can never go on: rank 1 has finished (rank 0 came"));
  EXPECT_EQ(results[1].status, results[0].status);
}

/// The coordinator reports to rank 3 before the others. That rank 3 has
/// finished, which rank 0 receives first, is not the cause of the failure.
TEST(RunProcessTest, TheEndOfARankThatReceivedAFailureIsNotTheFailure) {
  LoopbackWire wire({.size = 4});
  FailureChannelForTest channels[4];
  const FailureNotice failure = {.world_ranks = {2},
                                 .error = absl::UnavailableError("no luck")};
  const auto results = RunLoopback(
      wire, 4,
      [&](World& world) -> absl::Status {
        if (world.rank() == 3) {
          channels[3].Deliver(failure);
        } else if (world.rank() == 1) {
          SleepUntil([&] { return channels[3].Query() == "finished"; });
          // Rank 0 polls for messages.
          std::this_thread::sleep_for(std::chrono::milliseconds(50));
          for (const int rank : {0, 1, 2}) channels[rank].Deliver(failure);
        }
        if (world.rank() != 0) {
          SleepUntil([&] { return world.context().poisoned(); });
        }
        CH_RETURN_IF_ERROR(world.context().status());
        LongGather gather(world);
        CH_RETURN_IF_ERROR(gather.Issue());
        return world.context().Synchronize();
      },
      [&](int rank) { return MpiOptions{.failure_channel = &channels[rank]}; });
  for (const ProcessResult& result : results) {
    EXPECT_EQ(result.status, absl::UnavailableError("rank 2: no luck"));
    EXPECT_TRUE(result.ended_together);
  }
}

/// Ranks 1 and 3 disagree. Rank 1 waits for the fingerprint of rank 3 until the
/// coordinator reports what rank 3 has found.
TEST(RunProcessTest, TheCoordinatorReportsWhatRanksDisagreeOn) {
  LoopbackWire wire({.size = 4});
  wire.Hold(3, 1);
  CoordinatorForTest coordinator(4);
  const auto results = RunLoopback(
      wire, 4,
      [&](World& world) -> absl::Status {
        if (world.rank() == 2) {
          // Rank 3's collective, and its end.
          SleepUntil([&] { return wire.num_held() == 2; });
          wire.Release();
        }
        if (world.rank() % 2 == 0) {
          SleepUntil([&] { return world.context().poisoned(); });
          return world.context().status();
        }
        CH_ASSIGN_OR_RETURN(auto odd, world.Group("odd", {1, 3}, "comm"));
        CH_RETURN_IF_ERROR(Barrier(*odd, world.context().SideStream("comm"),
                                   world.rank() == 1 ? "this" : "that"));
        return world.context().Synchronize();
      },
      [&](int rank) {
        return MpiOptions{.failure_channel = &coordinator[rank]};
      });
  for (const ProcessResult& result : results) {
    EXPECT_THAT(result.status.ToString(), HasSubstr("'that' on rank 3"));
    EXPECT_TRUE(result.ended_together);
  }
  ASSERT_EQ(coordinator[3].reported().size(), 1u);
  EXPECT_TRUE(coordinator[3].reported()[0].of_group);
  EXPECT_EQ(coordinator[3].reported()[0].error, results[0].status);
}

TEST(RunProcessTest, OfTwoFailuresTheCoordinatorsIsTheJobs) {
  LoopbackWire wire({.size = 2});
  FailureChannelForTest channels[2];
  const auto results = RunLoopback(
      wire, 2,
      [&](World& world) -> absl::Status {
        if (world.rank() == 0) return absl::InternalError("disk full");
        SleepUntil([&] { return !channels[0].reported().empty(); });
        const FailureNotice cable = {
            .world_ranks = {1}, .error = absl::UnavailableError("cable cut")};
        for (const int rank : {0, 1}) channels[rank].Deliver(cable);
        return cable.error;
      },
      [&](int rank) { return MpiOptions{.failure_channel = &channels[rank]}; });
  for (const ProcessResult& result : results) {
    EXPECT_EQ(result.status, absl::UnavailableError("rank 1: cable cut"));
    EXPECT_TRUE(result.ended_together);
  }
}

/// A rank that waits for nothing receives a failure, too. One that does not
/// return keeps the others no longer than the timeout.
TEST(RunProcessTest, ARankThatDoesNotComeBackIsLeftBehind) {
  constexpr absl::Duration kTimeout = absl::Milliseconds(200);
  LoopbackWire wire({.size = 2});
  FailureChannelForTest channel;
  std::atomic<bool> others_left = false;
  const auto results = RunLoopback(
      wire, 2,
      [&](World& world) -> absl::Status {
        if (world.rank() == 0) return absl::InternalError("disk full");
        SleepUntil([&] { return world.context().poisoned(); });
        SleepUntil([&] { return others_left.load(); });
        // Longer than its grace period and the watchdog's interval.
        std::this_thread::sleep_for(absl::ToChronoMilliseconds(
            ReturnGrace(kTimeout) + absl::Milliseconds(400)));
        return world.context().status();
      },
      [&](int rank) {
        // The owner of the channel ends processes, not the engine.
        return MpiOptions{.job = {.timeout = kTimeout},
                          .failure_channel = rank == 1 ? &channel : nullptr};
      },
      [&](int rank) {
        if (rank == 0) others_left = true;
      });
  EXPECT_EQ(results[0].status, absl::InternalError("rank 0: disk full"));
  EXPECT_FALSE(results[0].ended_together);
  EXPECT_EQ(results[1].status, results[0].status);
  EXPECT_FALSE(results[1].ended_together);
}

TEST(RunProcessDeathTest, ARankThatDoesNotComeBackEndsItsProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        LoopbackWire wire({.size = 1});
        RunLoopback(
            wire, 1,
            [&](World& world) -> absl::Status {
              world.Abort(absl::InternalError("disk full"));
              SleepUntil([] { return false; });
              return absl::OkStatus();
            },
            [](int) {
              return MpiOptions{.job = {.timeout = absl::Milliseconds(20)}};
            });
      },
      "rank 0 did not come back within 5s after the run failed: .*disk full");
}

TEST(RunProcessTest, LabelsOfAnyLength) {
  LoopbackWire wire({.size = 2});
  const std::string label(100000, 'x');
  const auto results = RunLoopback(
      wire, 2,
      [&](World& world) -> absl::Status {
        CH_ASSIGN_OR_RETURN(auto comm, world.Group("all", {0, 1}, "comm"));
        CH_RETURN_IF_ERROR(Barrier(*comm, world.context().SideStream("comm"),
                                   world.rank() == 0 ? label : label + "y"));
        return world.context().Synchronize();
      },
      Plain);
  const std::string text(results[1].status.message());
  EXPECT_THAT(text, HasSubstr("disagree:\n  label: 'xxx"));
  EXPECT_LT(text.size(), size_t{17} << 10) << "an error is small";
}

}  // namespace
}  // namespace crosshatch::internal
