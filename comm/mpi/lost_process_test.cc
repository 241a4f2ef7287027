// SPDX-License-Identifier: Apache-2.0
//
// Processes and links that are lost in the engine of processes, with threads as
// processes.

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/mpi/run_loopback_testutil.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::internal {
namespace {

using testing::HasSubstr;

/// Rank 2 is lost while data move. The coordinator's report releases ranks that
/// wait for its data, or for it to read theirs.
TEST(LostProcessTest, ALostProcessReleasesThoseThatMoveData) {
  LoopbackWire wire({.size = 3, .dies_at_first_send = 2});
  FailureChannelForTest channels[3];
  std::string doing;
  std::thread coordinator([&] {
    SleepUntil([&] { return wire.lost(2); });
    SleepUntil([&] {
      doing = channels[0].Query();
      return doing.find("in all_gather") != std::string::npos;
    });
    for (FailureChannelForTest& channel : channels) {
      if (&channel == &channels[2]) continue;
      channel.Deliver({.world_ranks = {2},
                       .process_lost = true,
                       .error = absl::UnavailableError("killed by signal 9")});
    }
  });
  const auto results = RunLoopback(
      wire, 3,
      [](World& world) -> absl::Status {
        LongGather gather(world);
        CH_RETURN_IF_ERROR(gather.Issue());
        return world.context().Synchronize();
      },
      [&](int rank) { return MpiOptions{.failure_channel = &channels[rank]}; });
  coordinator.join();
  for (int rank : {0, 1}) {
    EXPECT_FALSE(results[rank].ended_together);
    EXPECT_EQ(results[rank].status,
              absl::UnavailableError("rank 2: killed by signal 9"));
    EXPECT_TRUE(channels[rank].reported().empty()) << "what it was told";
  }
  EXPECT_THAT(results[2].status.ToString(), HasSubstr("this end is cut off"));
  EXPECT_FALSE(results[2].ended_together);
  EXPECT_THAT(doing, HasSubstr("in all_gather #0 'weights' (f32) of group "
                               "'all' (ranks 0, 1, 2) for "));
}

TEST(LostProcessTest, WithoutAChannelALostProcessIsMissedAfterTheTimeout) {
  LoopbackWire wire({.size = 3, .dies_at_first_send = 2});
  const auto results = RunLoopback(
      wire, 3,
      [](World& world) -> absl::Status {
        LongGather gather(world);
        CH_RETURN_IF_ERROR(gather.Issue());
        return world.context().Synchronize();
      },
      [](int) { return MpiOptions{.job = {.timeout = absl::Seconds(1)}}; });
  for (int rank : {0, 1}) {
    EXPECT_FALSE(results[rank].ended_together);
    EXPECT_EQ(results[rank].status,
              absl::DeadlineExceededError(
                  "group 'all' (ranks 0, 1, 2) timed out after 1s: rank 2 "
                  "came to all_gather #0 'weights' (f32) and moved no data "
                  "since"));
  }
  EXPECT_THAT(results[2].status.ToString(), HasSubstr("this end is cut off"));
}

/// The link cannot report its own error, and its rank continues for a while.
TEST(LostProcessTest, AnErrorOfTheLinkIsReportedWhileItsRankGoesOn) {
  LoopbackWire wire({.size = 2, .dies_at_first_send = 1});
  FailureChannelForTest channels[2];
  RunLoopback(
      wire, 2,
      [&](World& world) -> absl::Status {
        LongGather gather(world);
        CH_RETURN_IF_ERROR(gather.Issue());
        FailureChannelForTest& of_rank_1 = channels[1];
        if (world.rank() == 1) {
          SleepUntil([&] { return !of_rank_1.reported().empty(); });
          channels[0].Deliver(of_rank_1.reported()[0]);
        }
        return world.context().Synchronize();
      },
      [&](int rank) { return MpiOptions{.failure_channel = &channels[rank]}; });
  ASSERT_EQ(channels[1].reported().size(), 1u);
  EXPECT_EQ(channels[1].reported()[0].world_ranks, std::vector<int>{1});
  EXPECT_EQ(channels[1].reported()[0].error,
            absl::InternalError("this end is cut off"));
  EXPECT_TRUE(channels[0].reported().empty()) << "what it was told";
}

/// Ranks 0 and 2 move data already when rank 1, which lacks a message, fails.
/// It leaves, and they leave, too, when no member reads their memory any more.
TEST(LostProcessTest, AMemberThatLeavesReleasesThoseThatMoveData) {
  LoopbackWire wire({.size = 3});
  wire.Hold(2, 1);
  CoordinatorForTest channels(3);
  const auto results = RunLoopback(
      wire, 3,
      [&](World& world) -> absl::Status {
        LongGather gather(world);
        CH_RETURN_IF_ERROR(gather.Issue());
        if (world.rank() == 1) {
          // The messages from ranks 0 and 2 to rank 1.
          SleepUntil([&] { return wire.num_unmet() == 2; });
          world.Abort(absl::UnavailableError("cable cut"));
          wire.Release();
        }
        return world.context().Synchronize();
      },
      [&](int rank) { return MpiOptions{.failure_channel = &channels[rank]}; });
  for (const ProcessResult& result : results) {
    EXPECT_EQ(result.status, absl::UnavailableError("rank 1: cable cut"));
    EXPECT_TRUE(result.ended_together);
  }
  ASSERT_EQ(channels[1].reported().size(), 1u);
  EXPECT_EQ(channels[1].reported()[0].world_ranks, std::vector<int>{1});
  EXPECT_FALSE(channels[1].reported()[0].process_lost);
  EXPECT_TRUE(channels[0].reported().empty());
}

/// A call of the link that does not return keeps the job's lock. The channel's
/// calls must return nevertheless, so that heartbeats and the watchdog
/// continue.
TEST(LostProcessTest, ABlockedLinkBlocksNothingOfTheChannel) {
  LoopbackWire wire({.size = 2, .blocks_at_send = 1});
  FailureChannelForTest channels[2];
  std::string doing;
  absl::Duration longest;
  std::thread coordinator([&] {
    SleepUntil([&] { return wire.is_blocked(); });
    const auto until =
        std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (channels[1].reported().empty() &&
           std::chrono::steady_clock::now() < until) {
      const auto began = std::chrono::steady_clock::now();
      doing = channels[1].Query();
      longest = std::max(
          longest, absl::FromChrono(std::chrono::steady_clock::now() - began));
    }
    const FailureNotice lost = {.world_ranks = {0},
                                .error = absl::UnavailableError("killed")};
    channels[1].Deliver(lost);
    channels[0].Deliver(lost);
    wire.Unblock();
  });
  const auto results = RunLoopback(
      wire, 2,
      [](World& world) -> absl::Status {
        LongGather gather(world);
        CH_RETURN_IF_ERROR(gather.Issue());
        return world.context().Synchronize();
      },
      [&](int rank) {
        return MpiOptions{.job = {.timeout = absl::Milliseconds(500)},
                          .failure_channel = &channels[rank]};
      });
  coordinator.join();
  EXPECT_THAT(doing, HasSubstr("; in a call of its transport that does not "
                               "return"));
  EXPECT_LT(longest, absl::Seconds(5));
  ASSERT_EQ(channels[1].reported().size(), 1u);
  EXPECT_THAT(channels[1].reported()[0].error.ToString(),
              HasSubstr("in a call of its transport that does not return, for "
                        "500ms"));
  EXPECT_FALSE(results[1].status.ok());
}

}  // namespace
}  // namespace crosshatch::internal
