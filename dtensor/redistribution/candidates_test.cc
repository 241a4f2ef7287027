// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "absl/strings/str_cat.h"
#include "crosshatch/dtensor/layout/layout_testutil.h"
#include "crosshatch/dtensor/redistribution/search.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

std::string Lightest(const std::string& from, const std::string& to,
                     ShapeView shape, int64_t bytes_per_launch = 0,
                     int64_t max_elements = 1 << 30) {
  const MeshLayout mesh = OracleMesh({2, 2});
  const int ndim = static_cast<int>(shape.size());
  const Layout before = LayoutOf(mesh, ndim, from);
  const Layout after = LayoutOf(mesh, ndim, to);
  const RedistributeCostModel model = {.bytes_per_launch = bytes_per_launch};
  const auto path =
      LightestCandidate({before, after, shape, 4, model, max_elements});
  if (!path.has_value()) return "none";
  std::string text = absl::StrCat(path->weight, ":");
  for (const RedistributeStep& step : path->steps) {
    absl::StrAppend(&text, " ", step.ToString());
  }
  return text;
}

TEST(RedistributeCandidatesTest, ShardsMoveByOneExchange) {
  EXPECT_EQ(Lightest("[S(0),S(0)]", "[S(1),R]", {8, 8}, 100),
            "196: all_to_all(dim 0 -> dim 1, axes=[dp,tp])");
}

TEST(RedistributeCandidatesTest, ReductionsComeFirst) {
  EXPECT_EQ(Lightest("[P(sum),S(0)]", "[R,R]", {64}),
            "256: all_reduce(sum, axes=[dp]) all_gather(dim 0, axes=[tp])");
  EXPECT_EQ(Lightest("[P(sum),P(sum)]", "[S(0),S(0)]", {64}),
            "192: reduce_scatter(sum, dim 0, axes=[dp,tp])");
}

TEST(RedistributeCandidatesTest, WhatReplicasHoldIsSlicedBefore) {
  EXPECT_EQ(Lightest("[P(sum),R]", "[R,S(0)]", {64}),
            "128: local(dim 0) all_reduce(sum, axes=[dp])");
}

TEST(RedistributeCandidatesTest, ValuesBecomeSummandsLast) {
  EXPECT_EQ(Lightest("[S(0),R]", "[P(max),R]", {64}),
            "128: all_gather(dim 0, axes=[dp]) to_partial(max, axes=[dp])");
}

TEST(RedistributeCandidatesTest, LaunchesAreWeighedAgainstBytes) {
  EXPECT_EQ(Lightest("[P(sum),P(sum)]", "[S(0),R]", {64}, 0),
            "256: reduce_scatter(sum, dim 0, axes=[dp,tp]) "
            "all_gather(dim 0, axes=[tp])");
  EXPECT_EQ(Lightest("[P(sum),P(sum)]", "[S(0),R]", {64}, 1000),
            "1384: all_reduce(sum, axes=[dp,tp]) local(dim 0)");
}

TEST(RedistributeCandidatesTest, ThereMayBeNoneWithinTheMemory) {
  // The source and the result are 64 elements each.
  EXPECT_EQ(Lightest("[P(sum),R]", "[R,R]", {64}, 0, 128),
            "256: all_reduce(sum, axes=[dp])");
  EXPECT_EQ(Lightest("[P(sum),R]", "[R,R]", {64}, 0, 127), "none");
}

}  // namespace
}  // namespace crosshatch
