// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/shape.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using ::testing::ElementsAre;

TEST(ShapeTest, NumElements) {
  EXPECT_EQ(NumElements({}), 1);
  EXPECT_EQ(NumElements({7}), 7);
  EXPECT_EQ(NumElements({2, 3, 5}), 30);
  EXPECT_EQ(NumElements({2, 0, 5}), 0);
}

TEST(ShapeTest, ContiguousStrides) {
  EXPECT_THAT(ContiguousStrides({}), ElementsAre());
  EXPECT_THAT(ContiguousStrides({4}), ElementsAre(1));
  EXPECT_THAT(ContiguousStrides({2, 3, 5}), ElementsAre(15, 5, 1));
  EXPECT_THAT(ContiguousStrides({2, 0, 5}), ElementsAre(5, 5, 1));
}

TEST(ShapeTest, IsContiguous) {
  EXPECT_TRUE(IsContiguous({}, {}));
  EXPECT_TRUE(IsContiguous({2, 3}, {3, 1}));
  EXPECT_FALSE(IsContiguous({2, 3}, {1, 2}));
  EXPECT_FALSE(IsContiguous({2, 3}, {4, 1}));
  // The stride of a dim of size 1 is never used.
  EXPECT_TRUE(IsContiguous({2, 1, 3}, {3, 99, 1}));
  EXPECT_FALSE(IsContiguous({2, 1, 3}, {0, 3, 1}));
  // A shape without elements is contiguous with any strides.
  EXPECT_TRUE(IsContiguous({0, 3}, {77, 5}));
  EXPECT_TRUE(IsContiguous({3, 0}, {77, 5}));
  EXPECT_TRUE(IsContiguous({3, 0, 2}, {9, 9, 9}));
}

TEST(ShapeTest, ContiguousStridesAreContiguous) {
  for (int64_t a : {0, 1, 2, 7}) {
    for (int64_t b : {0, 1, 3}) {
      for (int64_t c : {0, 1, 5}) {
        const Shape sizes = {a, b, c};
        EXPECT_TRUE(IsContiguous(sizes, ContiguousStrides(sizes)));
      }
    }
  }
}

TEST(ShapeTest, NormalizeDim) {
  EXPECT_EQ(NormalizeDim(0, 3, "sum"), 0);
  EXPECT_EQ(NormalizeDim(2, 3, "sum"), 2);
  EXPECT_EQ(NormalizeDim(-1, 3, "sum"), 2);
  EXPECT_EQ(NormalizeDim(-3, 3, "sum"), 0);
}

TEST(ShapeTest, BroadcastShapes) {
  EXPECT_THAT(BroadcastShapes({}, {}, "add"), ElementsAre());
  EXPECT_THAT(BroadcastShapes({2, 3}, {}, "add"), ElementsAre(2, 3));
  EXPECT_THAT(BroadcastShapes({2, 1, 3}, {5, 1}, "add"), ElementsAre(2, 5, 3));
  EXPECT_THAT(BroadcastShapes({3}, {2, 3}, "add"), ElementsAre(2, 3));
  EXPECT_THAT(BroadcastShapes({1}, {0}, "add"), ElementsAre(0));
  EXPECT_THAT(BroadcastShapes({0, 3}, {1, 1}, "add"), ElementsAre(0, 3));
}

TEST(ShapeTest, Prints) {
  EXPECT_EQ(ToString(ShapeView()), "[]");
  EXPECT_EQ(ToString({2, 3}), "[2, 3]");
}

TEST(ShapeDeathTest, NamesTheOpAndTheShapes) {
  EXPECT_DEATH(NormalizeDim(3, 3, "sum"), "sum: dim 3 of a tensor of 3 dims");
  EXPECT_DEATH(NormalizeDim(-4, 3, "sum"), "sum: dim -4");
  EXPECT_DEATH(NormalizeDim(0, 0, "sum"), "sum: dim 0 of a tensor of 0 dims");
  EXPECT_DEATH(BroadcastShapes({2, 3}, {2, 4}, "add"),
               "add: shapes \\[2, 3\\] and \\[2, 4\\] do not broadcast");
  EXPECT_DEATH(BroadcastShapes({0}, {2}, "add"), "\\[0\\] and \\[2\\]");
}

}  // namespace
}  // namespace crosshatch
