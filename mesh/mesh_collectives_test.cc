// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/mesh/mesh_collectives.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/testing/ranks.h"
#include "gtest/gtest.h"

namespace crosshatch {

namespace {

using ::testing::HasSubstr;

// Values whose second summand float32 would lose.
double ValueOf(int rank, int i) { return 1e9 * (i + 1) + 0.25 * rank; }

TEST(SumOverMesh, AddsInDoublePrecisionOverTheRanksOfTheMeshAlone) {
  OnMesh({{"a", 2}, {"b", 3}}, [](const DeviceMesh& mesh) -> absl::Status {
    const std::vector<std::vector<std::string>> slices = {
        {"a"}, {"b"}, {"b", "a"}};
    for (const std::vector<std::string>& axes : slices) {
      CH_ASSIGN_OR_RETURN(const DeviceMesh slice, mesh.Slice(axes));
      for (const int count : {0, 1, 5}) {
        std::vector<double> mine;
        std::vector<double> expected;
        for (int i = 0; i < count; ++i) {
          mine.push_back(ValueOf(mesh.world().rank(), i));
          expected.push_back(0);
          for (const int rank : slice.layout().ranks()) {
            expected.back() += ValueOf(rank, i);
          }
        }
        CH_ASSIGN_OR_RETURN(const std::vector<double> sums,
                            SumOverMesh(slice, mine));
        CH_EXPECT_EQ(sums, expected);
      }
    }
    return absl::OkStatus();
  });
}

TEST(SumOverMesh, DoesNotChangeATensor) {
  OnMesh({3}, [](const DeviceMesh& mesh) -> absl::Status {
    for (const DType dtype : {kFloat64, kFloat32, kInt64}) {
      const Tensor mine = Full({2}, mesh.world().rank() + 1, dtype);
      CH_ASSIGN_OR_RETURN(const std::vector<double> sums,
                          SumOverMesh(mesh, mine));
      CH_EXPECT_EQ(sums, (std::vector<double>{6, 6}));
      CH_EXPECT_EQ(mine.ToVector<double>()[1], mesh.world().rank() + 1);
    }
    return absl::OkStatus();
  });
}

TEST(SumOverMesh, OtherNumbersOfValuesAreAnErrorOfEveryRank) {
  const absl::Status status =
      StatusOfRanks(2, [](World& world) -> absl::Status {
        CH_ASSIGN_OR_RETURN(const DeviceMesh mesh,
                            InitDeviceMesh(world, {{"a", 2}}));
        const std::vector<double> mine(static_cast<size_t>(world.rank() + 1));
        const absl::Status sum = SumOverMesh(mesh, mine, "counts").status();
        CH_EXPECT_THAT(std::string(sum.message()), HasSubstr("counts"));
        return sum;
      });
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
}

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
