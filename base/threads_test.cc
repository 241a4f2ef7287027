// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/base/threads.h"

#include <sched.h>

#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "crosshatch/base/process_scopes_testutil.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

TEST(StartThread, RunsTheBody) {
  bool ran = false;
  absl::StatusOr<std::thread> thread =
      StartThread("the test's thread", [&ran] { ran = true; });
  ASSERT_TRUE(thread.ok()) << thread.status();
  thread->join();
  EXPECT_TRUE(ran);
}

TEST(StartThread, NamesTheThreadThatCannotStart) {
  const FewThreadsScope scope(0);
  const absl::StatusOr<std::thread> thread =
      StartThread("the thread of rank 3", [] {});
  EXPECT_EQ(thread.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(thread.status().message()),
              testing::StartsWith("cannot start the thread of rank 3: "));
}

TEST(WaitTime, IsTheTime) {
  EXPECT_EQ(WaitTime(absl::Milliseconds(3)), std::chrono::milliseconds(3));
  EXPECT_EQ(WaitTime(absl::ZeroDuration()), std::chrono::nanoseconds(0));
}

TEST(WaitTime, CanBeAddedToAClock) {
  const auto steady = std::chrono::steady_clock::now();
  EXPECT_GT(steady + WaitTime(absl::InfiniteDuration()), steady);
  const auto system = std::chrono::system_clock::now();
  EXPECT_GT(system + WaitTime(absl::InfiniteDuration()), system);
}

TEST(CoreShareTest, IsOfWhatTheThreadMayRunOn) {
  const CoreSet all = AllowedCores();
  ASSERT_GE(all.count(), 1u);
  EXPECT_EQ(CoreShare(1), static_cast<int>(all.count()));
  EXPECT_EQ(CoreShare(1000000), 1);
  std::thread([&] {
    cpu_set_t one;
    CPU_ZERO(&one);
    size_t last = 0;
    for (size_t core = 0; core < all.size(); ++core) {
      if (all[core]) last = core;
    }
    CPU_SET(last, &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
    EXPECT_EQ(AllowedCores(), CoreSet().set(last));
    EXPECT_EQ(CoreShare(1), 1);
  }).join();
}

std::vector<CoreSet> Sets(const std::vector<std::string>& texts) {
  std::vector<CoreSet> sets;
  for (const std::string& text : texts) sets.emplace_back(text);
  return sets;
}

TEST(CoreShareTest, CoresCountInPartsForAllThatMayRunOnThem) {
  // Each bound to other cores; then each to one core.
  EXPECT_EQ(CoreShare(Sets({"1111", "11110000"}), 1), 4);
  EXPECT_EQ(CoreShare(Sets({"01", "10"}), 0), 1);
  // All on the same cores.
  EXPECT_EQ(CoreShare(Sets({"111111111", "111111111", "111111111"}), 2), 3);
  EXPECT_EQ(CoreShare(Sets({"11", "11", "11"}), 0), 1);
  // Two on each half.
  EXPECT_EQ(CoreShare(Sets({"1111", "1111", "11110000", "11110000"}), 3), 2);
  // Two of three cores are shared with another.
  EXPECT_EQ(CoreShare(Sets({"111", "110"}), 0), 2);
  EXPECT_EQ(CoreShare(Sets({"111", "110"}), 1), 1);
}

}  // namespace
}  // namespace crosshatch
