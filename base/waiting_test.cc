// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/base/waiting.h"

#include <chrono>

#include "gtest/gtest.h"

namespace crosshatch {
namespace {

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

}  // namespace
}  // namespace crosshatch
