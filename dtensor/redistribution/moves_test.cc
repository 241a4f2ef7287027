// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/redistribution/moves.h"

#include <string>

#include "crosshatch/dtensor/layout/layout_testutil.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

Layout Parse(int ndim, const std::string& text) {
  return LayoutOf(OracleMesh({2, 2}), ndim, text);
}

// The op names the step; any other gives the same elements.
TEST(ToPartialStepTest, IsNamedByAnOpThatFills) {
  const Layout to = Parse(2, "[P(avg),P(sum)]");
  EXPECT_EQ(ToPartialStep(Parse(2, "[R,R]"), to, {0, 1}).op, ReduceOp::kSum);
  EXPECT_EQ(ToPartialStep(Parse(2, "[R,P(sum)]"), to, {0}).op, ReduceOp::kAvg);
}

TEST(InsertShardTest, WhatComesAfterAFineAxisIsFine) {
  const Layout r = Parse(1, "[R,R]");
  const Layout heads = r.WithDim(0, {.axes = {1}, .unit = 4});
  EXPECT_EQ(AppendShard(heads, 0, 0, r).sharding(0),
            (DimSharding{{1, 0}, 4, 0}));
  EXPECT_EQ(InsertShard(heads, 0, 0, 0, r).sharding(0),
            (DimSharding{{0, 1}, 4, 0}));
  const Layout fine =
      Layout::Replicated(OracleMesh({2, 2, 2}), 1)
          .WithDim(0, {.axes = {1, 0}, .unit = 4, .fine_axes = 1});
  EXPECT_EQ(AppendShard(fine, 2, 0, r).sharding(0),
            (DimSharding{{1, 0, 2}, 4, 2}));
  EXPECT_EQ(InsertShard(fine, 2, 0, 1, r).sharding(0),
            (DimSharding{{1, 2, 0}, 4, 2}));
  EXPECT_EQ(InsertShard(fine, 2, 0, 0, r).sharding(0),
            (DimSharding{{2, 1, 0}, 4, 1}));
  // A dim that was not split takes the unit of the target layout.
  EXPECT_EQ(AppendShard(r, 0, 0, heads).sharding(0), (DimSharding{{0}, 4, 0}));
}

}  // namespace

}  // namespace crosshatch
