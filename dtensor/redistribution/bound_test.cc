// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "crosshatch/dtensor/layout/layout_testutil.h"
#include "crosshatch/dtensor/redistribution/cost.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

int64_t Bound(const std::string& from, const std::string& to, ShapeView shape) {
  const MeshLayout mesh = OracleMesh({2, 2});
  const int ndim = static_cast<int>(shape.size());
  return RedistributeLowerBound(LayoutOf(mesh, ndim, from),
                                LayoutOf(mesh, ndim, to), shape);
}

TEST(RedistributeBoundTest, WithoutReductionsItIsWhatSomeRankLacks) {
  EXPECT_EQ(Bound("[S(0),S(0)]", "[R,R]", {8}), 6);
  EXPECT_EQ(Bound("[S(0),R]", "[R,S(0)]", {8}), 2 * 2);
  EXPECT_EQ(Bound("[S(0),R]", "[S(1),R]", {4, 6}), 2 * 3);
  EXPECT_EQ(Bound("[R,R]", "[S(0),S(0)]", {8}), 0);
  // Rank 1 lacks 2 of its 2 elements, ranks 0 and 3 lack none.
  EXPECT_EQ(Bound("[_S(0,2),S(0)]", "[S(0),S(0)]", {8}), 2);
  // 3 of 5 elements and 2: the second rank lacks the most.
  EXPECT_EQ(Bound("[S(0),R]", "[R,R]", {5}), 3);
}

TEST(RedistributeBoundTest, ReductionsTakeMessagesForEachSummandAndReplica) {
  // To one rank 1 message for each element, or two ranks share the work.
  EXPECT_EQ(Bound("[P(sum),R]", "[S(0),R]", {8}), 4);
  EXPECT_EQ(Bound("[P(sum),R]", "[R,R]", {8}), 8);
  // 4 summands to 4 ranks: 3 messages to sum an element, 3 to send it to all.
  EXPECT_EQ(Bound("[P(sum),P(sum)]", "[R,R]", {8}), 8 * 6 / 4);
  EXPECT_EQ(Bound("[P(sum),P(sum)]", "[S(0),S(0)]", {8}), 8 * 3 / 4);
  // Rounded up.
  EXPECT_EQ(Bound("[P(sum),P(sum)]", "[S(0),S(0)]", {5}), 4);
}

TEST(RedistributeBoundTest, SummandsThatStayAreNotCounted) {
  EXPECT_EQ(Bound("[P(sum),S(0)]", "[P(sum),R]", {8}), 4);
  EXPECT_EQ(Bound("[P(sum),R]", "[P(sum),R]", {8}), 0);
}

TEST(RedistributeBoundTest, RanksOfAPartialResultShareTheReceivedElements) {
  EXPECT_EQ(Bound("[S(0),R]", "[P(sum),R]", {8}), 0);
  EXPECT_EQ(Bound("[R,S(0)]", "[P(sum),R]", {8}), 2);
  EXPECT_EQ(Bound("[P(sum),R]", "[P(max),R]", {8}), 0);
}

TEST(RedistributeBoundTest, OfNoElementsIsZero) {
  EXPECT_EQ(Bound("[P(sum),S(0)]", "[R,R]", {0, 3}), 0);
  EXPECT_EQ(Bound("[S(0),S(0)]", "[R,R]", {0}), 0);
}

}  // namespace
}  // namespace crosshatch
