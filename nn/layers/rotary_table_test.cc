// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/layers/rotary_table.h"

#include <cmath>
#include <cstdint>
#include <vector>

#include "crosshatch/tensor/rank_context.h"
#include "gtest/gtest.h"

namespace crosshatch::nn {
namespace {

// A float32 angle is off by a few roundings of a number as large as the
// position.
TEST(RotaryTableTest, HoldsCosinesAndSinesOfAngles) {
  constexpr int64_t kLength = 40;
  constexpr int64_t kHeadDim = 12;
  RotaryTable table(kHeadDim, 10000.0);
  const std::vector<float> cos = table.Cos(kLength).ToVector<float>();
  const std::vector<float> sin = table.Sin(kLength).ToVector<float>();
  ASSERT_EQ(table.Cos(kLength).sizes(), (Shape{kLength, kHeadDim / 2}));
  for (int64_t t = 0; t < kLength; ++t) {
    for (int64_t i = 0; i < kHeadDim / 2; ++i) {
      const double angle =
          static_cast<double>(t) * std::pow(10000.0, -2.0 * i / kHeadDim);
      const double bound = 4 * 0x1p-24 * (1 + angle);
      EXPECT_NEAR(cos[t * kHeadDim / 2 + i], std::cos(angle), bound);
      EXPECT_NEAR(sin[t * kHeadDim / 2 + i], std::sin(angle), bound);
    }
  }
}

TEST(RotaryTableTest, IsKeptForALength) {
  RotaryTable table(8, 500000.0);
  const Tensor first = table.Cos(5);
  EXPECT_TRUE(table.Cos(5).SameAs(first));
  EXPECT_EQ(table.Cos(7).size(0), 7);
  EXPECT_EQ(table.Sin(7).size(0), 7);
  EXPECT_EQ(table.Cos(0).numel(), 0);
}

TEST(RotaryTableTest, HoldsNothingInADryRun) {
  RankContext context({.dry_run = true});
  const RankContextScope scope(&context);
  constexpr int64_t kLength = int64_t{1} << 40;
  RotaryTable table(128, 10000.0);
  EXPECT_EQ(table.Cos(kLength).sizes(), (Shape{kLength, 64}));
  EXPECT_EQ(table.Sin(kLength).sizes(), (Shape{kLength, 64}));
}

}  // namespace
}  // namespace crosshatch::nn
