// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/redistribution/moves.h"

#include <string>

#include "crosshatch/dtensor/layout/layout_testutil.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using Kind = RedistributeStepKind;

Layout Parse(const std::string& text, int ndim = 2) {
  return LayoutOf(OracleMesh({2, 2}), ndim, text);
}

std::string Exchange(const std::string& from, const std::string& to,
                     ShapeView shape = {8, 8}) {
  const auto step = ExchangeStep(Parse(from), Parse(to), shape);
  return step.has_value() ? step->ToString() : "nothing";
}

TEST(ExchangeStepTest, IsOverTheFewestAxes) {
  EXPECT_EQ(Exchange("[S(0),R]", "[S(0),R]"), "nothing");
  EXPECT_EQ(Exchange("[S(0),R]", "[S(0),S(1)]"), "local(dim 1)");
  EXPECT_EQ(Exchange("[S(0),S(0)]", "[R,R]"),
            "all_gather(dim 0, axes=[dp,tp])");
  EXPECT_EQ(Exchange("[S(0),S(0)]", "[S(0),R]"),
            "all_gather(dim 0, axes=[tp])");
  EXPECT_EQ(Exchange("[S(0),R]", "[S(1),R]"),
            "all_to_all(dim 0 -> dim 1, axes=[dp])");
  EXPECT_EQ(Exchange("[S(0),S(1)]", "[S(1),S(0)]"),
            "all_to_all(dim 0, dim 1, axes=[dp,tp])");
}

TEST(ExchangeStepTest, IsLocalIfRanksHaveTheirElementsAlready) {
  // One row: the first rank has it all, and only that rank needs any.
  EXPECT_EQ(Exchange("[S(0),R]", "[S(1),R]", {1, 1}), "local(dim 1)");
}

TEST(ReductionStepTest, ScattersWhereShardsGetSmaller) {
  const auto print = [](const std::string& from, const std::string& to,
                        const AxisList& axes) {
    return ReductionStep(Parse(from), Parse(to), axes).ToString();
  };
  EXPECT_EQ(print("[P(sum),R]", "[R,R]", {0}), "all_reduce(sum, axes=[dp])");
  EXPECT_EQ(print("[P(max),R]", "[S(1),R]", {0}),
            "reduce_scatter(max, dim 1, axes=[dp])");
  EXPECT_EQ(print("[P(avg),P(avg)]", "[R,R]", {0, 1}),
            "all_reduce(avg, axes=[dp,tp])");
  EXPECT_EQ(print("[P(avg),P(sum)]", "[R,R]", {0, 1}),
            "all_reduce(sum/2, axes=[dp,tp])");
}

TEST(ReductionStepTest, IsLocalOverAxesOfOneRank) {
  const MeshLayout mesh = OracleMesh({1, 2});
  const Layout from = LayoutOf(mesh, 1, "[P(sum),S(0)]");
  const Layout to = LayoutOf(mesh, 1, "[R,S(0)]");
  EXPECT_EQ(ReductionStep(from, to, {0}).kind, Kind::kLocal);
}

TEST(ToPartialStepTest, FillsIfAnyOfItsOpsDoes) {
  const Layout to = Parse("[P(avg),P(sum)]");
  EXPECT_EQ(ToPartialStep(Parse("[R,R]"), to, {0, 1}).op, ReduceOp::kSum);
  EXPECT_EQ(ToPartialStep(Parse("[R,P(sum)]"), to, {0}).op, ReduceOp::kAvg);
}

TEST(BecomesPartialInPlaceTest, RanksMayHoldTheirPartOfASum) {
  const auto in_place = [](const std::string& from, const std::string& to) {
    return BecomesPartialInPlace(Parse(from), Parse(to), {0}, {8, 8});
  };
  EXPECT_TRUE(in_place("[R,R]", "[P(sum),R]"));
  EXPECT_TRUE(in_place("[S(0),R]", "[P(sum),R]"));
  EXPECT_TRUE(in_place("[R,R]", "[P(max),R]"));
  // Every operand of a maximum is a whole.
  EXPECT_FALSE(in_place("[S(0),R]", "[P(max),R]"));
  // The other axis' part is missing.
  EXPECT_FALSE(in_place("[R,S(0)]", "[P(sum),R]"));
}

TEST(InsertShardTest, WhatComesAfterAFineAxisIsFine) {
  const Layout r = Parse("[R,R]", 1);
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
  // A dim that was whole takes the unit of the layout that it is to be like.
  EXPECT_EQ(AppendShard(r, 0, 0, heads).sharding(0), (DimSharding{{0}, 4, 0}));
}

}  // namespace
}  // namespace crosshatch
