// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/redistribution/step.h"

#include <string>

#include "absl/container/inlined_vector.h"
#include "crosshatch/dtensor/layout/layout_testutil.h"
#include "crosshatch/dtensor/redistribution/moves.h"
#include "gtest/gtest.h"

namespace crosshatch {

namespace {

using Kind = RedistributeStepKind;

Layout Parse(int ndim, const std::string& text) {
  return LayoutOf(OracleMesh({2, 2}), ndim, text);
}

TEST(RedistributeStepTest, PrintsDimsAxesAndOp) {
  struct {
    Kind kind;
    absl::InlinedVector<int, 4> axes;
    const char* from;
    const char* to;
    ReduceOp op;
    int64_t divisor;
    const char* text;
  } const cases[] = {
      {Kind::kLocal, {}, "[R,R]", "[S(1),R]", {}, 1, "local(dim 1)"},
      {Kind::kLocal, {}, "[S(1),R]", "[R,R]", {}, 1, "local()"},
      {Kind::kAllGather,
       {0},
       "[S(0),S(1)]",
       "[R,S(1)]",
       {},
       1,
       "all_gather(dim 0, axes=[dp])"},
      {Kind::kAllToAll,
       {1},
       "[R,S(1)]",
       "[R,S(0)]",
       {},
       1,
       "all_to_all(dim 1 -> dim 0, axes=[tp])"},
      {Kind::kReduceScatter,
       {0, 1},
       "[P(sum),P(avg)]",
       "[S(0),S(0)]",
       ReduceOp::kSum,
       2,
       "reduce_scatter(sum/2, dim 0, axes=[dp,tp])"},
      {Kind::kAllReduce,
       {1},
       "[R,P(max)]",
       "[R,R]",
       ReduceOp::kMax,
       1,
       "all_reduce(max, axes=[tp])"},
      {Kind::kToPartial,
       {0},
       "[R,R]",
       "[P(avg),R]",
       ReduceOp::kAvg,
       1,
       "to_partial(avg, axes=[dp])"},
  };
  for (const auto& c : cases) {
    const RedistributeStep step = {.kind = c.kind,
                                   .axes = c.axes,
                                   .op = c.op,
                                   .divisor = c.divisor,
                                   .from = Parse(2, c.from),
                                   .to = Parse(2, c.to)};
    EXPECT_EQ(step.ToString(), c.text);
  }
}

TEST(StepTransfersTest, BoxesAreRelativeToTheShards) {
  const RedistributeStep step = {.kind = Kind::kAllToAll,
                                 .axes = {1},
                                 .from = Parse(2, "[S(0),S(0)]"),
                                 .to = Parse(2, "[S(0),S(1)]")};
  // Rank 3 holds rows 6:8 of 8 and wants columns 3:5 of rows 4:8.
  const TransferBoxes boxes = StepTransfers(step, {8, 5}, {1, 1});
  EXPECT_EQ(boxes.self, 1);
  EXPECT_EQ(boxes.sends[0], (Box{{0, 0}, {2, 3}}));
  EXPECT_EQ(boxes.sends[1], (Box{{0, 3}, {2, 2}}));
  EXPECT_EQ(boxes.receives[0], (Box{{0, 0}, {2, 2}}));
  EXPECT_EQ(boxes.receives[1], (Box{{2, 0}, {2, 2}}));
}

TEST(StepTransfersTest, ScatteredReductionsSendEachPeerItsBox) {
  const RedistributeStep step = {.kind = Kind::kReduceScatter,
                                 .axes = {0},
                                 .from = Parse(1, "[P(sum),R]"),
                                 .to = Parse(1, "[S(0),R]")};
  const TransferBoxes boxes = StepTransfers(step, {5}, {1, 0});
  EXPECT_EQ(boxes.sends[0], (Box{{0}, {3}}));
  EXPECT_EQ(boxes.sends[1], (Box{{3}, {2}}));
  EXPECT_EQ(boxes.receives[0], (Box{{0}, {2}}));
  EXPECT_EQ(boxes.receives[1], (Box{{0}, {2}}));
  EXPECT_EQ(StepCost(step, {5}, 4), (RedistributeCost{12, 1}));
}

TEST(StepTransfersTest, OneReplicaBecomesTheSummand) {
  RedistributeStep step = {.kind = Kind::kToPartial,
                           .axes = {0},
                           .from = Parse(0, "[R,R]"),
                           .to = Parse(0, "[P(sum),R]")};
  EXPECT_EQ(StepTransfers(step, {}, {0, 1}).sends.size(), 1u);
  EXPECT_EQ(StepTransfers(step, {}, {1, 1}).sends.size(), 0u);
  EXPECT_EQ(step.FillValue(), 0);
  step.to = Parse(0, "[P(max),R]");
  EXPECT_EQ(StepTransfers(step, {}, {1, 1}).sends.size(), 1u);
  step.op = ReduceOp::kProduct;
  EXPECT_EQ(step.FillValue(), 1);
  EXPECT_EQ(StepCost(step, {}, 4), (RedistributeCost{0, 0}));
}

TEST(StepTransfersTest, AllReducesTakeTheWholeShard) {
  const RedistributeStep step = {.kind = Kind::kAllReduce,
                                 .axes = {0},
                                 .from = Parse(1, "[P(sum),S(0)]"),
                                 .to = Parse(1, "[R,S(0)]")};
  EXPECT_EQ(StepTransfers(step, {5}, {1, 1}).sends[0], (Box{{0}, {2}}));
  EXPECT_EQ(StepTransfers(step, {5}, {1, 1}).receives[0], (Box{{0}, {2}}));
  EXPECT_TRUE(StepTransfers(step, {1}, {1, 1}).sends.empty());
  EXPECT_EQ(StepCost(step, {4}, 4), (RedistributeCost{8, 1}));
}

std::string Exchange(const std::string& from, const std::string& to,
                     ShapeView shape = {8, 8}) {
  const auto step = ExchangeStep(Parse(2, from), Parse(2, to), shape);
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
    return ReductionStep(Parse(2, from), Parse(2, to), axes).ToString();
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
  const Layout to = Parse(2, "[P(avg),P(sum)]");
  EXPECT_EQ(ToPartialStep(Parse(2, "[R,R]"), to, {0, 1}).op, ReduceOp::kSum);
  EXPECT_EQ(ToPartialStep(Parse(2, "[R,P(sum)]"), to, {0}).op, ReduceOp::kAvg);
}

TEST(BecomesPartialInPlaceTest, RanksMayHoldTheirPartOfASum) {
  const auto in_place = [](const std::string& from, const std::string& to) {
    return BecomesPartialInPlace(Parse(2, from), Parse(2, to), {0}, {8, 8});
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
