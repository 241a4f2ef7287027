// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/mesh/rank_difference.h"

#include <optional>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/testing/ranks.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

TEST(RankDifferenceTest, NamesTheFirstOfEachByWorldRanks) {
  RunRanks(6, [](World& world) -> absl::Status {
    CH_ASSIGN_OR_RETURN(const DeviceMesh mesh,
                        InitDeviceMesh(world, {{"a", 2}, {"b", 3}}));
    // Row a has the ranks 3 a, 3 a + 1 and 3 a + 2.
    CH_ASSIGN_OR_RETURN(const DeviceMesh row, mesh.Slice("b"));
    const int first = world.rank() / 3 * 3;
    CH_ASSIGN_OR_RETURN(const auto same,
                        FindRankDifference(row, "alike", "test"));
    CH_EXPECT_FALSE(same.has_value());
    CH_ASSIGN_OR_RETURN(
        const auto differ,
        FindRankDifference(row, absl::StrCat(world.rank() == first + 2),
                           "test"));
    CH_EXPECT_TRUE(differ.has_value());
    if (!differ.has_value()) return absl::OkStatus();
    CH_EXPECT_EQ(differ->first, "0");
    CH_EXPECT_EQ(differ->first_rank, first);
    CH_EXPECT_EQ(differ->other, "1");
    CH_EXPECT_EQ(differ->other_rank, first + 2);
    return absl::OkStatus();
  });
}

TEST(RankDifferenceTest, IsNoneOnAMeshOfOneRank) {
  RunRanks(2, [](World& world) -> absl::Status {
    CH_ASSIGN_OR_RETURN(const DeviceMesh mesh,
                        InitDeviceMesh(world, {{"a", 2}, {"b", 1}}));
    CH_ASSIGN_OR_RETURN(const DeviceMesh alone, mesh.Slice("b"));
    CH_ASSIGN_OR_RETURN(
        const auto differ,
        FindRankDifference(alone, absl::StrCat(world.rank()), "test"));
    CH_EXPECT_FALSE(differ.has_value());
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace crosshatch
