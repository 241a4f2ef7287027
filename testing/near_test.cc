// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/testing/near.h"

#include "crosshatch/testing/expect.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

TEST(NearTest, IsRelativeToTheLargestValue) {
  CheckScope scope;
  constexpr float kUnit = 0x1p-24f;
  ExpectNear({{8, 16 * kUnit}, {}}, {{8, 0}, {}}, 2);
  EXPECT_TRUE(scope.Take().empty());
  ExpectNear({{8, 17 * kUnit}}, {{8, 0}}, 2);
  const auto failed = scope.Take();
  ASSERT_EQ(failed.size(), 1u);
  EXPECT_THAT(failed[0].message, ::testing::HasSubstr("element 1 of tensor 0"));
}

TEST(NearTest, ComparesSizes) {
  CheckScope scope;
  ExpectNear({{1}}, {{1}, {2}}, 1);
  ExpectNear({{1}}, {{1, 2}}, 1);
  EXPECT_EQ(scope.Take().size(), 2u);
}

}  // namespace
}  // namespace crosshatch
