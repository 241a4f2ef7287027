// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/redistribution/step.h"

#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using Kind = RedistributeStepKind;

MeshLayout TwoByTwo() {
  return MeshLayout::Create({{"dp", 2}, {"tp", 2}}).value();
}

Layout Parse(int ndim, const std::string& text) {
  return Layout::FromPlacements(TwoByTwo(), ndim, ParsePlacements(text).value())
      .value();
}

TEST(RedistributeStepTest, PrintsDimsAxesAndOp) {
  const auto print = [](RedistributeStep step) { return step.ToString(); };
  EXPECT_EQ(print({.kind = Kind::kLocal,
                   .from = Parse(2, "[R,R]"),
                   .to = Parse(2, "[S(1),R]")}),
            "local(dim 1)");
  EXPECT_EQ(print({.kind = Kind::kLocal,
                   .from = Parse(2, "[S(1),R]"),
                   .to = Parse(2, "[R,R]")}),
            "local()");
  EXPECT_EQ(print({.kind = Kind::kAllGather,
                   .axes = {0},
                   .from = Parse(2, "[S(0),S(1)]"),
                   .to = Parse(2, "[R,S(1)]")}),
            "all_gather(dim 0, axes=[dp])");
  EXPECT_EQ(print({.kind = Kind::kAllToAll,
                   .axes = {1},
                   .from = Parse(2, "[R,S(1)]"),
                   .to = Parse(2, "[R,S(0)]")}),
            "all_to_all(dim 1 -> dim 0, axes=[tp])");
  EXPECT_EQ(print({.kind = Kind::kReduceScatter,
                   .axes = {0, 1},
                   .op = ReduceOp::kSum,
                   .divisor = 2,
                   .from = Parse(2, "[P(sum),P(avg)]"),
                   .to = Parse(2, "[S(0),S(0)]")}),
            "reduce_scatter(sum/2, dim 0, axes=[dp,tp])");
  EXPECT_EQ(print({.kind = Kind::kAllReduce,
                   .axes = {1},
                   .op = ReduceOp::kMax,
                   .from = Parse(2, "[R,P(max)]"),
                   .to = Parse(2, "[R,R]")}),
            "all_reduce(max, axes=[tp])");
  EXPECT_EQ(print({.kind = Kind::kToPartial,
                   .axes = {0},
                   .op = ReduceOp::kAvg,
                   .from = Parse(2, "[R,R]"),
                   .to = Parse(2, "[P(avg),R]")}),
            "to_partial(avg, axes=[dp])");
}

TEST(StepTransfersTest, OnlyWhatChangesOwnerMoves) {
  const RedistributeStep step = {.kind = Kind::kAllToAll,
                                 .axes = {0, 1},
                                 .from = Parse(1, "[_S(0,2),S(0)]"),
                                 .to = Parse(1, "[S(0),S(0)]")};
  // Ranks 1 and 2 swap; ranks 0 and 3 keep what they have.
  for (int rank = 0; rank < 4; ++rank) {
    const TransferBoxes boxes =
        StepTransfers(step, {8}, TwoByTwo().CoordinateAt(rank));
    const int partner = rank == 1 ? 2 : rank == 2 ? 1 : rank;
    for (int peer = 0; peer < 4; ++peer) {
      EXPECT_EQ(boxes.self, rank);
      EXPECT_EQ(boxes.sends[peer].numel(), peer == partner ? 2 : 0);
      EXPECT_EQ(boxes.receives[peer].numel(), peer == partner ? 2 : 0);
    }
  }
  EXPECT_EQ(StepCost(step, {8}, 4), (RedistributeCost{8, 1}));
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

}  // namespace
}  // namespace crosshatch
