// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/launch/start_deadline.h"

#include <cstdio>
#include <thread>

#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

TEST(StartDeadline, LetsGoWhatIsInTime) {
  for (int i = 0; i < 100; ++i) {
    const StartDeadline deadline(absl::Hours(1), [] { FAIL(); });
  }
  const StartDeadline never(absl::InfiniteDuration(), [] { FAIL(); });
}

TEST(StartDeadlineDeathTest, EndsTheProcessThatIsNot) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        const StartDeadline deadline(absl::Milliseconds(10), [] {
          std::fputs("MPI has not started\n", stderr);
        });
        std::this_thread::sleep_for(std::chrono::hours(1));
      },
      testing::ExitedWithCode(1), "MPI has not started");
  EXPECT_EXIT(
      {
        StartDeadline deadline(
            absl::Hours(1), [] { std::fputs("a process is lost\n", stderr); });
        deadline.Expire();
        std::this_thread::sleep_for(std::chrono::hours(1));
      },
      testing::ExitedWithCode(1), "a process is lost");
}

}  // namespace
}  // namespace crosshatch
