// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/base/thread_pool.h"

#include <atomic>
#include <chrono>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "crosshatch/base/error_context.h"
#include "crosshatch/base/process_scopes_testutil.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using ::testing::Each;

class ThreadPoolTest : public ::testing::TestWithParam<int> {};

TEST_P(ThreadPoolTest, RunsEachPartOnce) {
  ThreadPool pool(GetParam());
  for (int64_t parts : {0, 1, 2, 3, 7, 64, 1000}) {
    std::vector<std::atomic<int>> runs(static_cast<size_t>(parts));
    pool.ParallelFor(parts, [&](int64_t p) { ++runs[static_cast<size_t>(p)]; });
    for (const auto& count : runs) EXPECT_EQ(count, 1);
  }
}

TEST_P(ThreadPoolTest, ReturnsAfterAllPartsAcrossManyCalls) {
  ThreadPool pool(GetParam());
  std::vector<int> values(5, 0);
  for (int call = 0; call < 2000; ++call) {
    pool.ParallelFor(5, [&](int64_t p) { ++values[static_cast<size_t>(p)]; });
    ASSERT_THAT(values, Each(call + 1));
  }
}

TEST_P(ThreadPoolTest, WakesThreadsThatWentToSleep) {
  ThreadPool pool(GetParam());
  for (int call = 0; call < 3; ++call) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    std::atomic<int> sum = 0;
    pool.ParallelFor(8, [&](int64_t p) {
      // The caller's own share ends first, so that it sleeps too.
      if (p % pool.width() != 0) {
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      }
      sum += static_cast<int>(p);
    });
    EXPECT_EQ(sum, 28);
  }
}

TEST_P(ThreadPoolTest, AssignsPartsStatically) {
  ThreadPool pool(GetParam());
  const auto width = static_cast<size_t>(pool.width());
  std::vector<std::thread::id> threads(20);
  // Waits until all threads have begun, so that the caller takes over none.
  std::atomic<int> begun = 0;
  const auto record = [&] {
    begun = 0;
    pool.ParallelFor(20, [&](int64_t p) {
      if (p < pool.width()) ++begun;
      while (begun < pool.width()) std::this_thread::yield();
      threads[static_cast<size_t>(p)] = std::this_thread::get_id();
    });
  };
  record();
  const std::vector<std::thread::id> first = threads;
  record();
  EXPECT_EQ(threads, first);
  for (size_t p = 0; p < 20; ++p) EXPECT_EQ(first[p], first[p % width]);
  EXPECT_EQ(first[0], std::this_thread::get_id());
  EXPECT_EQ(std::set<std::thread::id>(first.begin(), first.end()).size(),
            width);
}

TEST_P(ThreadPoolTest, CallerRunsWholeSharesThatHaveNotBegun) {
  ThreadPool pool(GetParam());
  const auto width = static_cast<size_t>(pool.width());
  const std::thread::id caller = std::this_thread::get_id();
  std::vector<std::thread::id> threads(20);
  // A thread that sleeps takes longer to come than an empty share to run, but
  // in some tries it may come in time.
  bool took_over = false;
  for (int attempt = 0; attempt < 1000 && !took_over; ++attempt) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    pool.ParallelFor(20, [&](int64_t p) {
      threads[static_cast<size_t>(p)] = std::this_thread::get_id();
    });
    for (size_t p = 0; p < 20; ++p) ASSERT_EQ(threads[p], threads[p % width]);
    took_over = threads[width - 1] == caller;
  }
  EXPECT_TRUE(took_over);
}

TEST_P(ThreadPoolTest, NestedCallsRunInline) {
  ThreadPool pool(GetParam());
  std::atomic<int> runs = 0;
  pool.ParallelFor(6, [&](int64_t) {
    const std::thread::id outer = std::this_thread::get_id();
    pool.ParallelFor(4, [&](int64_t) {
      EXPECT_EQ(std::this_thread::get_id(), outer);
      ++runs;
    });
  });
  EXPECT_EQ(runs, 24);
}

TEST_P(ThreadPoolTest, CallersTakeTurns) {
  ThreadPool pool(GetParam());
  const auto call_often = [&] {
    for (int i = 0; i < 200; ++i) {
      std::atomic<int> runs = 0;
      pool.ParallelFor(7, [&](int64_t) { ++runs; });
      ASSERT_EQ(runs, 7);
    }
  };
  std::thread other(call_often);
  call_often();
  other.join();
}

INSTANTIATE_TEST_SUITE_P(Widths, ThreadPoolTest, ::testing::Values(1, 2, 3, 5));

TEST(ThreadPoolDeathTest, NeedsAThread) {
  EXPECT_DEATH(ThreadPool(0), "threads of a pool");
}

class Op final : public ErrorContext {
 public:
  Op() : ErrorContext(Kind::kOp) {}
  std::string Describe() const override { return "op gather"; }
};

TEST(ThreadPool, ItsThreadsAreWhereTheCallerIs) {
  ThreadPool pool(3);
  std::vector<std::string> in_op(3), outside(3);
  {
    const Op op;
    pool.ParallelFor(3, [&](int64_t p) {
      in_op[static_cast<size_t>(p)] = ErrorContext::DescribeCurrent();
    });
  }
  pool.ParallelFor(3, [&](int64_t p) {
    outside[static_cast<size_t>(p)] = ErrorContext::DescribeCurrent();
  });
  EXPECT_THAT(in_op, Each("op gather"));
  EXPECT_THAT(outside, Each(""));
}

TEST(ThreadPool, IsAsWideAsTheSystemAllows) {
  const FewThreadsScope scope(2);
  ThreadPool pool(8);
  EXPECT_EQ(pool.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(pool.width(), 3);
  std::vector<int> runs(100);
  pool.ParallelFor(100, [&](int64_t p) { ++runs[static_cast<size_t>(p)]; });
  EXPECT_THAT(runs, Each(1));
}

}  // namespace
}  // namespace crosshatch
