// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/return_grace.h"

#include "gtest/gtest.h"

namespace crosshatch {
namespace {

TEST(ReturnGraceTest, IsTheTimeoutAndNeverShort) {
  EXPECT_EQ(ReturnGrace(absl::Milliseconds(20)), absl::Seconds(5));
  EXPECT_EQ(ReturnGrace(absl::Seconds(5)), absl::Seconds(5));
  EXPECT_EQ(ReturnGrace(absl::Minutes(10)), absl::Minutes(10));
  EXPECT_EQ(ReturnGrace(absl::InfiniteDuration()), absl::InfiniteDuration());
}

}  // namespace
}  // namespace crosshatch
