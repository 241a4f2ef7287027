// SPDX-License-Identifier: Apache-2.0
//
// Lost processes in the engine of processes, with threads as processes.

#include "crosshatch/comm/mpi/run_process.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/event_sink.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/data_plane.h"
#include "crosshatch/comm/mpi/run_loopback_testutil.h"
#include "crosshatch/comm/return_grace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::internal {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

MpiOptions Plain(int) { return {}; }

/// An all-gather of lists that are too long for payloads.
class LongGather {
 public:
  explicit LongGather(World& world) : world_(world) {
    mine_.assign(kCount, static_cast<float>(world.rank() + 1));
    all_.resize(kCount * static_cast<size_t>(world.size()));
  }

  absl::Status Issue() {
    CH_ASSIGN_OR_RETURN(auto comm,
                        world_.Group("all", world_.AllRanks(), "comm"));
    return AllGather(*comm, mine_.data(), all_.data(), kCount, kFloat32,
                     world_.context().SideStream("comm"), "weights");
  }

 private:
  static constexpr size_t kCount = 1000;
  World& world_;
  std::vector<float> mine_, all_;
};

void SleepUntil(absl::FunctionRef<bool()> condition) {
  while (!condition()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

TEST(RunProcessTest, RefusesWhatCannotBe) {
  EXPECT_THAT(
      CheckOptions({.job = {.timeout = absl::ZeroDuration()}}).ToString(),
      HasSubstr("a timeout must be positive"));
  EXPECT_THAT(
      CheckOptions({.job = {.test = {.max_message_bytes = 7}}}).ToString(),
      HasSubstr("max_message_bytes must be from 8 to 2^30, not 7"));
  EXPECT_TRUE(CheckOptions({}).ok());
}

/// Rank 2 is lost while data move. The coordinator's report releases ranks that
/// wait for its data, or for it to read theirs.
TEST(RunProcessTest, ALostProcessReleasesThoseThatMoveData) {
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

TEST(RunProcessTest, WithoutAChannelALostProcessIsMissedAfterTheTimeout) {
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
TEST(RunProcessTest, AnErrorOfTheLinkIsReportedWhileItsRankGoesOn) {
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

TEST(RunProcessTest, ActivityNamesTheLastCollective) {
  LoopbackWire wire({.size = 2});
  FailureChannelForTest channels[2];
  std::vector<std::string> said[2];
  const auto results = RunLoopback(
      wire, 2,
      [&](World& world) -> absl::Status {
        const auto ask = [&, rank = world.rank()] {
          said[rank].push_back(channels[rank].Query());
        };
        ask();
        CH_ASSIGN_OR_RETURN(auto comm,
                            world.Group("all", world.AllRanks(), "comm"));
        CH_RETURN_IF_ERROR(comm->Exchange("", "stop").status());
        ask();
        CH_RETURN_IF_ERROR(
            Barrier(*comm, world.context().SideStream("comm"), "step"));
        CH_RETURN_IF_ERROR(world.context().Synchronize());
        ask();
        return absl::OkStatus();
      },
      [&](int rank) { return MpiOptions{.failure_channel = &channels[rank]}; });
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_TRUE(results[rank].status.ok()) << results[rank].status;
    const std::string of_group = " of group 'all' (ranks 0, 1)";
    EXPECT_THAT(said[rank],
                ElementsAre("before its first collective",
                            "computing, after exchange 'stop'" + of_group,
                            "computing, after barrier #0 'step'" + of_group));
  }
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

/// Ranks 0 and 2 move data already when rank 1, which lacks a message, fails.
/// It leaves, and they leave, too, when no member reads their memory any more.
TEST(RunProcessTest, AMemberThatLeavesReleasesThoseThatMoveData) {
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

/// A call of the link that does not return keeps the job's lock. The channel's
/// calls must return nevertheless, so that heartbeats and the watchdog
/// continue.
TEST(RunProcessTest, ABlockedLinkBlocksNothingOfTheChannel) {
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

/// Moves nothing, and hangs in collectives whose label is "hang".
class HangingPlanes final : public DataPlanes {
 public:
  const std::string& name() const override { return name_; }
  absl::StatusOr<std::unique_ptr<DataPlane>> Connect(
      const GroupKey& key, int member, RankContext&, absl::Duration,
      Exchange exchange) override {
    for (const int round : {0, 1}) {
      CH_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                          exchange(absl::StrCat(key.stream_name, member)));
      for (int r = 0; r < key.size(); ++r) {
        EXPECT_EQ(all[r], absl::StrCat(key.stream_name, r)) << round;
      }
    }
    return std::make_unique<Plane>();
  }

 private:
  class Plane final : public DataPlane {
   public:
    absl::Status Issue(const Collective& collective, int64_t, const Payloads&,
                       Stream&) override {
      if (collective.label != "hang") return absl::OkStatus();
      SleepUntil([this] { return is_aborted_.load(); });
      return absl::AbortedError("no more");
    }
    void Abort() override { is_aborted_ = true; }

   private:
    std::atomic<bool> is_aborted_ = false;
  };

  const std::string name_ = "hanging";
};

/// A plane connects in its stream's first collective, in any order of streams,
/// with a deadline.
TEST(RunProcessTest, ADataPlaneThatHangsEndsByTheTimeout) {
  LoopbackWire wire({.size = 2});
  HangingPlanes planes[2];
  const auto results = RunLoopback(
      wire, 2,
      [](World& world) -> absl::Status {
        EXPECT_EQ(world.engine(), "hanging");
        CH_ASSIGN_OR_RETURN(auto a, world.Group("x", {0, 1}, "a"));
        CH_ASSIGN_OR_RETURN(auto b, world.Group("x", {0, 1}, "b"));
        Communicator* const order[] = {a.get(), b.get()};
        for (const int i : {0, 1}) {
          const int at = (i + world.rank()) % 2;
          CH_RETURN_IF_ERROR(Barrier(
              *order[at], world.context().SideStream(at == 0 ? "a" : "b"),
              "first"));
        }
        CH_RETURN_IF_ERROR(world.context().Synchronize());
        CH_RETURN_IF_ERROR(
            Barrier(*a, world.context().SideStream("a"), "hang"));
        return world.context().Synchronize();
      },
      [&](int rank) {
        return MpiOptions{.job = {.timeout = absl::Milliseconds(300)},
                          .planes = &planes[rank]};
      });
  for (const ProcessResult& result : results) {
    EXPECT_TRUE(result.ended_together);
    EXPECT_EQ(result.status.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_THAT(std::string(result.status.message()),
                HasSubstr("group 'x' (ranks 0, 1) timed out after 300ms: on "
                          "rank "));
    EXPECT_THAT(std::string(result.status.message()),
                HasSubstr("the data of barrier #1 'hang' are not in place"));
  }
}

/// Runs one collective that hangs, the only one of a group of `size`.
void ExpectFirstCollectiveTimesOut(int size) {
  LoopbackWire wire({.size = size});
  std::vector<HangingPlanes> planes(static_cast<size_t>(size));
  const auto results = RunLoopback(
      wire, size,
      [size](World& world) -> absl::Status {
        std::vector<int> ranks(static_cast<size_t>(size));
        std::iota(ranks.begin(), ranks.end(), 0);
        CH_ASSIGN_OR_RETURN(auto group, world.Group("x", ranks, "a"));
        CH_RETURN_IF_ERROR(
            Barrier(*group, world.context().SideStream("a"), "hang"));
        return world.context().Synchronize();
      },
      [&](int rank) {
        return MpiOptions{.job = {.timeout = absl::Milliseconds(300)},
                          .planes = &planes[static_cast<size_t>(rank)]};
      });
  for (const ProcessResult& result : results) {
    EXPECT_EQ(result.status.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_THAT(std::string(result.status.message()),
                HasSubstr("timed out after 300ms"));
  }
}

TEST(RunProcessTest, ADataPlaneThatHangsAtOnceEndsByTheTimeout) {
  ExpectFirstCollectiveTimesOut(2);
}

TEST(RunProcessTest, ADataPlaneOfOneRankThatHangsEndsByTheTimeout) {
  ExpectFirstCollectiveTimesOut(1);
}

TEST(RunProcessTest, ARankThatComputesForEverAfterTheOthersFailsTheJob) {
  LoopbackWire wire({.size = 3});
  const auto results = RunLoopback(
      wire, 3,
      [](World& world) -> absl::Status {
        if (world.rank() != 1) return absl::OkStatus();
        SleepUntil([&] { return world.context().poisoned(); });
        return absl::OkStatus();
      },
      [](int) {
        return MpiOptions{.job = {.timeout = absl::Milliseconds(300)}};
      });
  for (const ProcessResult& result : results) {
    EXPECT_EQ(result.status.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_THAT(std::string(result.status.message()),
                HasSubstr("rank 1: its function goes on, and has been in no "
                          "collective for 300ms; rank 0, which has finished, "
                          "waits for it"));
  }
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

TEST(RunProcessTest, ActivityNamesTheCurrentCollective) {
  LoopbackWire wire({.size = 2});
  FailureChannelForTest channels[2];
  RunLoopback(
      wire, 2,
      [&](World& world) -> absl::Status {
        FailureChannelForTest& channel = channels[world.rank()];
        EXPECT_EQ(channel.Query(), "before its first collective");
        LongGather gather(world);
        CH_RETURN_IF_ERROR(gather.Issue());
        CH_RETURN_IF_ERROR(world.context().Synchronize());
        EXPECT_EQ(channel.Query(),
                  "computing, after all_gather #0 'weights' (f32) of group "
                  "'all' (ranks 0, 1)");
        if (world.rank() == 0) return absl::OkStatus();
        SleepUntil([&] { return channels[0].Query() == "finished"; });
        return absl::OkStatus();
      },
      [&](int rank) { return MpiOptions{.failure_channel = &channels[rank]}; });
  EXPECT_EQ(channels[0].Query(), "") << "the job is over";
}

/// Records the spans of one rank as text.
class SpansForTest : public EventSink {
 public:
  explicit SpansForTest(bool wants_spans) : wants_spans_(wants_spans) {}

  void Write(const LogEvent& event) override {
    const bool begins = event.kind == EventKind::kSpanBegin;
    if (!begins && event.kind != EventKind::kSpanEnd) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    spans_.push_back(absl::StrCat(begins ? "+ " : "- ", event.what, " ",
                                  *event.subject, " on ", *event.where));
  }
  bool wants_spans() const override { return wants_spans_; }

  /// Call after the job.
  const std::vector<std::string>& spans() const { return spans_; }

 private:
  const bool wants_spans_;
  std::mutex mutex_;
  std::vector<std::string> spans_;
};

TEST(RunProcessTest, TracesShowWhatComparingTakes) {
  LoopbackWire wire({.size = 2});
  SpansForTest wanted(true), unwanted(false);
  const auto results = RunLoopback(
      wire, 2,
      [&](World& world) -> absl::Status {
        LongGather gather(world);
        CH_RETURN_IF_ERROR(gather.Issue());
        return world.context().Synchronize();
      },
      [&](int) {
        return MpiOptions{.job = {.sinks = {&wanted, &unwanted}}};
      });
  EXPECT_TRUE(results[0].status.ok()) << results[0].status;
  // Writing its own fingerprint, and comparing those of the others.
  EXPECT_THAT(wanted.spans(),
              ElementsAre("+ collective all_gather all on comm",
                          "+ comparing  on comm", "- comparing  on comm",
                          "+ comparing  on comm", "- comparing  on comm",
                          "- collective all_gather all on comm"));
  EXPECT_THAT(unwanted.spans(), IsEmpty());
}

/// Two columns of four: packed by the sender, unpacked by the receiver, and
/// contiguous on both sides.
TEST(RunProcessTest, TracesShowWhatPackingTakes) {
  constexpr int64_t kRows = 1000;
  for (const bool strided : {true, false}) {
    LoopbackWire wire({.size = 2});
    SpansForTest spans[2] = {SpansForTest(true), SpansForTest(true)};
    const auto results = RunLoopback(
        wire, 2,
        [&](World& world) -> absl::Status {
          std::vector<float> memory(4 * kRows);
          const Segment columns = {.data = memory.data(),
                                   .run_elems = 2,
                                   .runs = kRows,
                                   .stride_elems = 4};
          const Segment run = {.data = memory.data(), .run_elems = 2 * kRows};
          const SegmentList list = {strided ? columns : run};
          CH_ASSIGN_OR_RETURN(auto comm,
                              world.Group("all", world.AllRanks(), "comm"));
          Collective broadcast = {
              .kind = CollectiveKind::kBroadcast, .label = "w", .recv = {list}};
          if (world.rank() == 0) broadcast.send = {list};
          CH_RETURN_IF_ERROR(comm->Issue(std::move(broadcast),
                                         world.context().SideStream("comm")));
          return world.context().Synchronize();
        },
        [&](int) {
          return MpiOptions{.job = {.sinks = {&spans[0], &spans[1]}}};
        });
    EXPECT_TRUE(results[0].status.ok()) << results[0].status;
    for (const SpansForTest& of_rank : spans) {
      EXPECT_EQ(std::count(of_rank.spans().begin(), of_rank.spans().end(),
                           "+ packing  on comm"),
                strided ? 1 : 0);
    }
  }
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
