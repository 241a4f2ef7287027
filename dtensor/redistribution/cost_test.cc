// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/redistribution/cost.h"

#include <string>

#include "crosshatch/dtensor/layout/layout_testutil.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using Kind = RedistributeStepKind;

RedistributeStep Step(Kind kind, absl::InlinedVector<int, 4> axes,
                      const std::string& from, const std::string& to) {
  const MeshLayout mesh = OracleMesh({2, 2});
  return {.kind = kind,
          .axes = std::move(axes),
          .from = LayoutOf(mesh, 1, from),
          .to = LayoutOf(mesh, 1, to)};
}

TEST(RedistributeCostTest, WeighsBytesAndLaunches) {
  const RedistributeCostModel model = {.bytes_per_launch = 10};
  EXPECT_EQ(model.Weight({7, 3}), 37);
  const RedistributeStep gather =
      Step(Kind::kAllGather, {0}, "[S(0),R]", "[R,R]");
  EXPECT_EQ(model.Weight(gather, {7, 1}), 17);
  // Without launches, nothing but bytes has weight.
  EXPECT_EQ(model.Weight(gather, {0, 0}), 0);
}

TEST(RedistributeCostTest, ACollectiveOverSeveralAxesCostsTheMostOfTheirs) {
  const RedistributeCostModel model = {.bytes_per_launch_of_axis = {40, 2}};
  EXPECT_EQ(model.LaunchWeight({0}), 40);
  EXPECT_EQ(model.LaunchWeight({1}), 2);
  EXPECT_EQ(model.LaunchWeight({0, 1}), 40);
  EXPECT_EQ(
      model.Weight(Step(Kind::kAllGather, {1}, "[R,S(0)]", "[R,R]"), {5, 1}),
      7);
}

TEST(RedistributeCostTest, ABytePaysTheMostOfItsAxes) {
  const RedistributeCostModel model = {.bytes_per_launch = 3,
                                       .weight_of_byte_by_axis = {22, 1}};
  EXPECT_EQ(model.ByteWeight({0}), 22);
  EXPECT_EQ(model.ByteWeight({1}), 1);
  EXPECT_EQ(model.ByteWeight({0, 1}), 22);
  EXPECT_FALSE(model.WeighsBytesAlike());
  EXPECT_EQ(
      model.Weight(Step(Kind::kAllGather, {1}, "[R,S(0)]", "[R,R]"), {5, 1}),
      8);
  EXPECT_EQ(model.Weight(Step(Kind::kAllGather, {0, 1}, "[S(0),S(0)]", "[R,R]"),
                         {5, 1}),
            5 * 22 + 3);
  EXPECT_TRUE(RedistributeCostModel().WeighsBytesAlike());
  EXPECT_EQ(RedistributeCostModel().ByteWeight({0}), 1);
}

TEST(RedistributeCostDeathTest, TheModelMustHaveAllAxes) {
  const RedistributeCostModel model = {.bytes_per_launch_of_axis = {40, 2}};
  EXPECT_DEATH(model.LaunchWeight({2}), "has weights of 2 mesh axes");
}

TEST(HeldElementsTest, CountsTheSourceTheLastResultAndTheNext) {
  const RedistributeStep to_whole =
      Step(Kind::kAllGather, {0, 1}, "[S(0),S(0)]", "[R,R]");
  HeldElements held(to_whole.from, {8});
  EXPECT_EQ(held.peak(), 2);
  EXPECT_EQ(held.result(), 0);
  held.Run(to_whole, {8});
  EXPECT_EQ(held.peak(), 2 + 8);
  EXPECT_EQ(held.result(), 8);
  // A slice is a view, which keeps the whole alive.
  held.Run(Step(Kind::kLocal, {}, "[R,R]", "[S(0),R]"), {8});
  EXPECT_EQ(held.peak(), 2 + 8);
  EXPECT_EQ(held.result(), 8);
  held.Run(Step(Kind::kAllToAll, {0, 1}, "[S(0),R]", "[R,S(0)]"), {8});
  EXPECT_EQ(held.peak(), 2 + 8 + 4);
  EXPECT_EQ(held.result(), 4);
}

TEST(HeldElementsTest, CountsNewSummandsOfSumsOnly) {
  HeldElements sums(LayoutOf(OracleMesh({2, 2}), 1, "[R,R]"), {8});
  sums.Run(Step(Kind::kToPartial, {0}, "[R,R]", "[P(sum),R]"), {8});
  EXPECT_EQ(sums.peak(), 16);
  HeldElements most(LayoutOf(OracleMesh({2, 2}), 1, "[R,R]"), {8});
  most.Run(Step(Kind::kToPartial, {0}, "[R,R]", "[P(max),R]"), {8});
  EXPECT_EQ(most.peak(), 8);
}

TEST(RedistributeBoundTest, CountsWhatSomeRankMustReceive) {
  struct {
    const char* from;
    const char* to;
    Shape shape;
    int64_t bound;
  } const cases[] = {
      // Without reductions, what some rank lacks.
      {"[S(0),S(0)]", "[R,R]", {8}, 6},
      {"[S(0),R]", "[R,S(0)]", {8}, 2 * 2},
      {"[S(0),R]", "[S(1),R]", {4, 6}, 2 * 3},
      {"[R,R]", "[S(0),S(0)]", {8}, 0},
      // Rank 1 lacks 2 of its 2 elements, ranks 0 and 3 lack none.
      {"[_S(0,2),S(0)]", "[S(0),S(0)]", {8}, 2},
      // 3 of 5 elements and 2: the second rank lacks the most.
      {"[S(0),R]", "[R,R]", {5}, 3},
      // To one rank 1 message for each element, or two ranks share the work.
      {"[P(sum),R]", "[S(0),R]", {8}, 4},
      {"[P(sum),R]", "[R,R]", {8}, 8},
      // 4 summands to 4 ranks: 3 messages to sum an element, 3 to send it to
      // all.
      {"[P(sum),P(sum)]", "[R,R]", {8}, 8 * 6 / 4},
      {"[P(sum),P(sum)]", "[S(0),S(0)]", {8}, 8 * 3 / 4},
      // Rounded up.
      {"[P(sum),P(sum)]", "[S(0),S(0)]", {5}, 4},
      // Summands that stay are not counted.
      {"[P(sum),S(0)]", "[P(sum),R]", {8}, 4},
      {"[P(sum),R]", "[P(sum),R]", {8}, 0},
      // Ranks of a partial result share the received elements.
      {"[S(0),R]", "[P(sum),R]", {8}, 0},
      {"[R,S(0)]", "[P(sum),R]", {8}, 2},
      {"[P(sum),R]", "[P(max),R]", {8}, 0},
      // Of no elements.
      {"[P(sum),S(0)]", "[R,R]", {0, 3}, 0},
      {"[S(0),S(0)]", "[R,R]", {0}, 0},
  };
  const MeshLayout mesh = OracleMesh({2, 2});
  for (const auto& c : cases) {
    const int ndim = static_cast<int>(c.shape.size());
    EXPECT_EQ(RedistributeLowerBound(LayoutOf(mesh, ndim, c.from),
                                     LayoutOf(mesh, ndim, c.to), c.shape),
              c.bound)
        << c.from << " -> " << c.to;
  }
}

}  // namespace
}  // namespace crosshatch
