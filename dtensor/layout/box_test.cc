// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/layout/box.h"

#include "gtest/gtest.h"

namespace crosshatch {
namespace {

TEST(IntervalTest, IntersectIsEmptyWhereTheyDoNotMeet) {
  EXPECT_EQ(Intersect(Interval{0, 5}, Interval{3, 9}), (Interval{3, 5}));
  EXPECT_EQ(Intersect(Interval{0, 3}, Interval{3, 9}).size(), 0);
  EXPECT_EQ(Intersect(Interval{6, 9}, Interval{0, 2}).size(), 0);
}

TEST(IntervalTest, EveryIntervalContainsTheEmptyOne) {
  EXPECT_TRUE(Contains(Interval{0, 1}, Interval{7, 7}));
  EXPECT_TRUE(Contains(Interval{0, 4}, Interval{1, 4}));
  EXPECT_FALSE(Contains(Interval{0, 4}, Interval{1, 5}));
}

TEST(BoxTest, IntersectWorksByDim) {
  const Box a = {{0, 2}, {4, 4}};
  const Box b = {{3, 0}, {3, 3}};
  EXPECT_EQ(Intersect(a, b), (Box{{3, 2}, {1, 1}}));
  EXPECT_EQ(Intersect(a, b).numel(), 1);
  EXPECT_TRUE(Intersect(a, Box{{4, 0}, {1, 9}}).empty());
}

TEST(BoxTest, ContainsIgnoresOffsetsOfEmptyBoxes) {
  const Box whole = WholeBox({4, 6});
  EXPECT_TRUE(Contains(whole, Box{{1, 2}, {3, 4}}));
  EXPECT_FALSE(Contains(whole, Box{{1, 2}, {3, 5}}));
  EXPECT_TRUE(Contains(whole, Box{{9, 9}, {3, 0}}));
}

TEST(BoxTest, BoxesOfNoDimsHoldOneElement) {
  EXPECT_EQ(WholeBox({}).numel(), 1);
  EXPECT_EQ(Intersect(WholeBox({}), WholeBox({})).numel(), 1);
}

TEST(BoxTest, RelativeToMovesTheOrigin) {
  EXPECT_EQ(RelativeTo(Box{{5, 7}, {2, 3}}, {4, 7}), (Box{{1, 0}, {2, 3}}));
}

TEST(BoxTest, Prints) {
  EXPECT_EQ(ToString(Box{{0, 3}, {2, 2}}), "[0:2, 3:5]");
  EXPECT_EQ(ToString(WholeBox({})), "[]");
}

}  // namespace
}  // namespace crosshatch
