// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/process_scopes_testutil.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/world.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using ::testing::HasSubstr;

TEST(RunLocal, GivesEachRankItsWorld) {
  std::vector<int> seen(3);
  const absl::Status status = RunLocal(3, [&](World& world) {
    seen[world.rank()] = world.size();
    if (world.engine() != "local" || !world.device().is_cpu() ||
        &world.context() != &RankContext::Current()) {
      return absl::InternalError("another world");
    }
    return absl::OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_THAT(seen, testing::Each(3));
}

TEST(RunLocal, RefusesBadOptions) {
  const auto fn = [](World&) { return absl::OkStatus(); };
  EXPECT_EQ(RunLocal(0, fn).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(RunLocal(2, fn, {.sinks = {nullptr}}).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(RunLocal(2, fn, {.timeout = absl::ZeroDuration()}).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(RunLocal(1, fn, {.timeout = absl::InfiniteDuration()}).ok());
}

TEST(RunLocal, ReleasesAllRanksWhereTheSystemHasNoThreadForOne) {
  std::atomic<int> calls = 0;
  absl::Status status;
  {
    const FewThreadsScope scope(3);
    status = RunLocal(100, [&](World&) {
      ++calls;
      return absl::OkStatus();
    });
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("cannot start the thread of rank 3 of 100"));
  EXPECT_EQ(calls, 0);
  EXPECT_TRUE(RunLocal(4, [](World&) { return absl::OkStatus(); }).ok());
}

TEST(RunLocal, NamesTheRankWhosePoolOrStreamFoundNoThread) {
  for (int threads_per_rank : {1, 4}) {
    const FewThreadsScope scope(2);
    const absl::Status status = RunLocal(
        2,
        [](World& world) -> absl::Status {
          CH_ASSIGN_OR_RETURN(auto all, world.Group("all", {0, 1}, "s"));
          return Barrier(*all, world.context().SideStream("s"), "b");
        },
        {.threads_per_rank = threads_per_rank});
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("cannot start "));
    EXPECT_THAT(std::string(status.message()), HasSubstr("rank "));
  }
}

// Without a stream, whose thread would be missing, too.
TEST(RunLocal, ARankWithoutItsPoolDoesNotGoOn) {
  const FewThreadsScope scope(3);
  const absl::Status status = RunLocal(
      2, [](World&) { return absl::OkStatus(); }, {.threads_per_rank = 4});
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("cannot start "));
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank "));
}

TEST(RunLocal, AnExceptionOfARankIsItsError) {
  const auto throws = [](const auto& exception) {
    return RunLocal(2, [&](World& world) -> absl::Status {
      if (world.rank() == 1) throw exception;
      CH_ASSIGN_OR_RETURN(auto all, world.Group("all", {0, 1}, "s"));
      return Barrier(*all, world.context().compute_stream(), "b");
    });
  };
  EXPECT_EQ(
      throws(std::runtime_error("no such file")),
      absl::InternalError("rank 1: the rank's function threw: no such file"));
  EXPECT_EQ(throws(std::bad_alloc()),
            absl::ResourceExhaustedError(
                "rank 1: the rank's function ran out of memory"));
  EXPECT_EQ(throws(3), absl::InternalError("rank 1: the rank's function threw "
                                           "what is no std::exception"));
}

TEST(RunLocal, RefusesASeedThatIsNoNumber) {
  const auto fn = [](World&) { return absl::OkStatus(); };
  const char* const variable = "CROSSHATCH_ADVERSARIAL_SEED";
  const KeptVariable kept(variable);
  for (const char* seed : {"abc", "1x", "-1", " ", "18446744073709551616"}) {
    setenv(variable, seed, 1);
    for (const absl::Status& status : {RunLocal(2, fn), RunFake({}, fn)}) {
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << seed;
      EXPECT_THAT(std::string(status.message()),
                  HasSubstr("CROSSHATCH_ADVERSARIAL_SEED="));
    }
  }
  for (const char* seed : {"", "0", "18446744073709551615"}) {
    setenv(variable, seed, 1);
    EXPECT_TRUE(RunLocal(2, fn).ok()) << seed;
  }
}

TEST(RunLocal, ThreadsPerRankIsThePoolsWidth) {
  const auto expect_width = [](int width) {
    return [width](World& world) {
      if (world.context().pool().width() == width) return absl::OkStatus();
      return absl::InternalError(
          absl::StrCat("width ", world.context().pool().width()));
    };
  };
  EXPECT_TRUE(RunLocal(2, expect_width(3), {.threads_per_rank = 3}).ok());
  EXPECT_TRUE(RunLocal(64, expect_width(std::max(
                               1u, std::thread::hardware_concurrency() / 64)))
                  .ok());
}

TEST(RunLocal, EachRankWritesToItsOwnSink) {
  class CountingSink final : public EventSink {
   public:
    void Write(const LogEvent& event) override {
      if (event.kind == EventKind::kCollective) ++count;
    }
    int count = 0;
  };
  CountingSink sinks[2];
  const absl::Status status = RunLocal(
      2,
      [](World& world) -> absl::Status {
        CH_ASSIGN_OR_RETURN(auto alone,
                            world.Group("alone", {world.rank()}, "compute"));
        for (int i = 0; i <= world.rank(); ++i) {
          CH_RETURN_IF_ERROR(
              Barrier(*alone, world.context().compute_stream(), "b"));
        }
        return absl::OkStatus();
      },
      {.sinks = {&sinks[0], &sinks[1]}});
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(sinks[0].count, 1);
  EXPECT_EQ(sinks[1].count, 2);
}

TEST(RunLocal, ListsItsGroupsInTheOrderOfCreation) {
  const absl::Status status = RunLocal(2, [](World& world) -> absl::Status {
    CH_ASSIGN_OR_RETURN(auto b, world.Group("b", {0, 1}, "s"));
    CH_ASSIGN_OR_RETURN(auto a, world.Group("a", {1, 0}, "s"));
    CH_ASSIGN_OR_RETURN(auto b_again, world.Group("b", {0, 1}, "s"));
    const auto groups = world.groups();
    if (groups.size() != 2 || groups[0] != b || groups[1] != a ||
        b_again != b) {
      return absl::InternalError("groups");
    }
    if (a->rank() != 1 - world.rank()) return absl::InternalError("index");
    if (world.Group("c", {1 - world.rank()}, "s").ok()) {
      return absl::InternalError("no member");
    }
    return absl::OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status;
}

TEST(RunLocal, PrefersTheCauseToWhatItCaused) {
  // Rank 0 reports first, and late.
  const absl::Status status = RunLocal(3, [](World& world) -> absl::Status {
    if (world.rank() == 2) return absl::NotFoundError("no such file: x.bin");
    CH_ASSIGN_OR_RETURN(auto all, world.Group("all", {0, 1, 2}, "s"));
    CH_RETURN_IF_ERROR(Barrier(*all, world.context().SideStream("s"), "b"));
    const absl::Status result = world.context().Synchronize();
    if (result.ok()) return absl::InternalError("did not fail");
    return absl::InvalidArgumentError("loss is not a number");
  });
  EXPECT_EQ(status, absl::NotFoundError("rank 2: no such file: x.bin"));
}

TEST(RunLocal, ReportsPoisonThatTheRankIgnored) {
  const absl::Status status = RunLocal(2, [](World& world) {
    if (world.rank() == 1) world.context().Poison(absl::DataLossError("nan"));
    return absl::OkStatus();
  });
  EXPECT_EQ(status, absl::DataLossError("rank 1: nan"));
}

TEST(RunLocal, GroupsRequestedAfterAFailureHaveFailed) {
  absl::Status late_group;
  const absl::Status status = RunLocal(2, [&](World& world) -> absl::Status {
    if (world.rank() == 0) return absl::InternalError("boom");
    while (!world.context().poisoned()) std::this_thread::yield();
    CH_ASSIGN_OR_RETURN(auto late, world.Group("late", {0, 1}, "s"));
    late_group = late->Exchange("x", "y").status();
    return late_group;
  });
  EXPECT_THAT(std::string(late_group.message()), HasSubstr("boom"));
  EXPECT_EQ(status, absl::InternalError("rank 0: boom"));
}

TEST(RunLocal, CommunicatorMayOutliveTheRun) {
  std::shared_ptr<Communicator> kept;
  EXPECT_TRUE(RunLocal(1, [&](World& world) -> absl::Status {
                CH_ASSIGN_OR_RETURN(kept, world.Group("a", {0}, "s"));
                return absl::OkStatus();
              }).ok());
  EXPECT_EQ(kept->stats().by_kind[0].calls, 0);
}

TEST(RunLocal, OneRankDoesEveryCollectiveAlone) {
  float from[3] = {1, 2, 3}, to[3] = {};
  const absl::Status status = RunLocal(1, [&](World& world) -> absl::Status {
    CH_ASSIGN_OR_RETURN(auto comm, world.Group("a", {0}, "compute"));
    Stream& stream = world.context().compute_stream();
    CH_RETURN_IF_ERROR(AllGather(*comm, from, to, 3, kFloat32, stream, "g"));
    CH_RETURN_IF_ERROR(
        AllReduce(*comm, to, 3, kFloat32, ReduceOp::kAvg, stream, "r"));
    return world.context().Synchronize();
  });
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_THAT(to, testing::ElementsAre(1, 2, 3));
}

TEST(RunLocalDeathTest, EndsTheProcessWhenARankNeverComesBack) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      RunLocal(2,
               [](World& world) -> absl::Status {
                 if (world.rank() == 0) return absl::InternalError("boom");
                 while (true) {
                   std::this_thread::sleep_for(std::chrono::milliseconds(1));
                 }
               },
               {.timeout = absl::Milliseconds(50)})
          .IgnoreError(),
      "rank 1 did not come back within 5s after the run failed: INTERNAL: "
      "rank 0: boom");
}

TEST(RunLocalTest, ARankThatComputesForEverAfterTheOthersFailsTheRun) {
  const absl::Status status =
      RunLocal(3,
               [](World& world) -> absl::Status {
                 if (world.rank() != 1) return absl::OkStatus();
                 while (!world.context().poisoned()) {
                   std::this_thread::sleep_for(std::chrono::milliseconds(1));
                 }
                 return absl::OkStatus();
               },
               {.timeout = absl::Milliseconds(300)});
  EXPECT_EQ(status, absl::DeadlineExceededError(
                        "rank 1: its function goes on, and has been in no "
                        "collective for 300ms; others, which have finished, "
                        "wait for it"));
}

TEST(RunLocalTest, ATimeoutShorterThanAnOpIsAnErrorAndNoEndOfTheProcess) {
  const absl::Status status = RunLocal(
      2,
      [](World& world) -> absl::Status {
        absl::StatusOr<std::shared_ptr<Communicator>> group =
            world.Group("all", {0, 1}, world.context().compute_stream().name());
        if (!group.ok()) return group.status();
        // Far beyond the timeout, and then as long again.
        if (world.rank() == 1) {
          std::this_thread::sleep_for(std::chrono::milliseconds(100));
        }
        return (*group)->Exchange("", "late").status();
      },
      {.timeout = absl::Nanoseconds(1)});
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
}

}  // namespace
}  // namespace crosshatch
