// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/base/start_thread.h"

#include <string>
#include <utility>

#include "crosshatch/base/few_threads_testutil.h"
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

TEST(StartThread, SaysWhichThreadTheSystemHasNoRoomFor) {
  const FewThreadsScope scope(0);
  const absl::StatusOr<std::thread> thread =
      StartThread("the thread of rank 3", [] {});
  EXPECT_EQ(thread.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(thread.status().message()),
              testing::StartsWith("cannot start the thread of rank 3: "));
}

}  // namespace
}  // namespace crosshatch
