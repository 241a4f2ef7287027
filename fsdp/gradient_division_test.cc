// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/fsdp/gradient_division.h"

#include "gtest/gtest.h"

namespace crosshatch::fsdp {
namespace {

TEST(GradientDivisionTest, DividesOnceInTheReduceScatter) {
  for (const DType dtype : {kFloat32, kBFloat16}) {
    for (const bool replicated : {false, true}) {
      EXPECT_EQ(PlanGradientDivision(dtype, 6, replicated, false),
                (GradientDivision{.reduce_scatter = 1.0 / 6}));
    }
  }
}

TEST(GradientDivisionTest, SplitsTheDivisionOfFloat16NearTheRoot) {
  EXPECT_EQ(PlanGradientDivision(kFloat16, 16, false, false),
            (GradientDivision{.before = 0.25, .reduce_scatter = 0.25}));
  EXPECT_EQ(PlanGradientDivision(kFloat16, 6, true, false),
            (GradientDivision{.before = 0.25, .all_reduce = 4.0 / 6}));
  EXPECT_EQ(PlanGradientDivision(kFloat16, 1, false, false),
            GradientDivision{});
  for (double factor = 1; factor < 5000; factor *= 1.7) {
    const GradientDivision d =
        PlanGradientDivision(kFloat16, factor, true, false);
    EXPECT_NEAR(d.before * d.reduce_scatter * d.all_reduce * d.after * factor,
                1, 1e-15);
    // Both factors are within a factor of 2 of the square root.
    EXPECT_LE(1 / d.before * (1 / d.before), 4 * factor);
    EXPECT_GE(1 / d.before * (1 / d.before), factor);
  }
}

TEST(GradientDivisionTest, DividesAfterwardsWhereCollectivesOnlySum) {
  EXPECT_EQ(PlanGradientDivision(kFloat16, 6, true, true),
            (GradientDivision{.after = 1.0 / 6}));
}

}  // namespace
}  // namespace crosshatch::fsdp
