// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/mesh/mesh_layout.h"

#include "absl/hash/hash.h"
#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Names = std::vector<std::string>;

MeshLayout Mesh(std::vector<MeshAxis> axes) {
  return MeshLayout::Create(std::move(axes)).value();
}

TEST(MeshLayoutTest, RanksAreRowMajor) {
  const MeshLayout mesh = Mesh({{"fsdp", 2}, {"tp", 3}});
  EXPECT_EQ(mesh.ndim(), 2);
  EXPECT_EQ(mesh.size(), 6);
  EXPECT_EQ(mesh.size(1), 3);
  EXPECT_THAT(mesh.shape(), ElementsAre(2, 3));
  EXPECT_THAT(mesh.axis_names(), ElementsAre("fsdp", "tp"));
  EXPECT_EQ(mesh.rank_at({1, 0}), 3);
  EXPECT_EQ(*mesh.CoordinateOf(5), (MeshCoordinate{1, 2}));
  EXPECT_EQ(mesh.CoordinateOf(6), std::nullopt);
  EXPECT_EQ(mesh.CoordinateOf(-1), std::nullopt);
  EXPECT_EQ(*mesh.AxisIndex("tp"), 1);
  EXPECT_EQ(mesh.ToString(), "mesh(fsdp=2, tp=3)");
  EXPECT_TRUE(mesh.is_root());
}

TEST(MeshLayoutTest, AcceptsAnyDistinctRanks) {
  const MeshLayout mesh =
      *MeshLayout::Create({{"a", 2}, {"b", 2}}, {7, 1, 40, 3});
  EXPECT_EQ(mesh.rank_at({1, 0}), 40);
  EXPECT_EQ(*mesh.CoordinateOf(40), (MeshCoordinate{1, 0}));
  EXPECT_FALSE(mesh.Contains(0));
  EXPECT_EQ(mesh.ToString(), "mesh(a=2, b=2, ranks=[7,1,40,3])");
}

TEST(MeshLayoutTest, RefusesInvalidMeshes) {
  const auto message = [](std::vector<MeshAxis> axes, std::vector<int> ranks) {
    const auto mesh = MeshLayout::Create(std::move(axes), std::move(ranks));
    EXPECT_EQ(mesh.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(mesh.status().message());
  };
  EXPECT_THAT(message({}, {}), HasSubstr("no axes; give at least one"));
  EXPECT_THAT(message({{"a", 1}, {"a", 2}}, {0, 1}),
              HasSubstr("\"a\" is used twice"));
  EXPECT_THAT(message({{"", 1}}, {0}), HasSubstr("without a name"));
  EXPECT_THAT(message({{"a=1, b", 2}}, {0, 1}), HasSubstr("holds a"));
  EXPECT_THAT(message({{"a", 0}}, {}), HasSubstr("\"a\" has size 0"));
  EXPECT_THAT(message({{"a", 2}, {"b", 2}}, {0, 1}),
              HasSubstr("shape (2, 2) needs 4 ranks, got 2"));
  EXPECT_THAT(message({{"a", 3}}, {0, 2, 2}),
              HasSubstr("rank 2 appears twice"));
  EXPECT_THAT(message({{"a", 1}}, {-1}), HasSubstr("negative rank -1"));
  EXPECT_FALSE(MeshLayout::Create({{"a", 1 << 20}, {"b", 1 << 20}}).ok());
  EXPECT_FALSE(MeshLayout::Create({{"a", 0}}).ok());
}

TEST(MeshLayoutTest, EqualityIsByValueAndRoot) {
  const MeshLayout a = Mesh({{"x", 2}, {"y", 2}});
  const MeshLayout b = Mesh({{"x", 2}, {"y", 2}});
  EXPECT_EQ(a, b);
  EXPECT_EQ(absl::HashOf(a), absl::HashOf(b));
  EXPECT_NE(a, Mesh({{"x", 2}, {"z", 2}}));
  EXPECT_NE(a, Mesh({{"x", 4}, {"y", 1}}));
  EXPECT_NE(a, *MeshLayout::Create({{"x", 2}, {"y", 2}}, {0, 2, 1, 3}));
  EXPECT_EQ(*a.Slice(Names{"x"}, 1), *b.Slice(Names{"x"}, 3));
  EXPECT_NE(*a.Slice(Names{"y"}, 0), Mesh({{"y", 2}}));
}

TEST(MeshLayoutTest, GroupsRunThroughTheirAxesMajorFirst) {
  const MeshLayout mesh = Mesh({{"a", 2}, {"b", 3}, {"c", 2}});
  const MeshCoordinate at = {1, 2, 0};
  EXPECT_THAT(mesh.GroupRanks({1}, at), ElementsAre(6, 8, 10));
  EXPECT_THAT(mesh.GroupRanks({0, 2}, at), ElementsAre(4, 5, 10, 11));
  EXPECT_THAT(mesh.GroupRanks({2, 0}, at), ElementsAre(4, 10, 5, 11));
  EXPECT_THAT(mesh.GroupRanks({2, 0}, 10), ElementsAre(4, 10, 5, 11));
  EXPECT_THAT(mesh.GroupRanks({}, at), ElementsAre(10));
  const std::vector<std::vector<int>> orders = {{}, {0}, {2, 1}, {1, 0, 2}};
  for (const std::vector<int>& axes : orders) {
    for (int rank = 0; rank < mesh.size(); ++rank) {
      const MeshCoordinate place = *mesh.CoordinateOf(rank);
      const std::vector<int> group = mesh.GroupRanks(axes, place);
      EXPECT_EQ(static_cast<int>(group.size()), mesh.GroupSize(axes));
      EXPECT_EQ(group[mesh.GroupIndex(axes, place)], rank);
    }
  }
}

TEST(MeshLayoutTest, SlicesTakeAxesInAnyOrder) {
  const MeshLayout mesh = Mesh({{"a", 2}, {"b", 3}, {"c", 2}});
  const MeshLayout slice = *mesh.Slice(Names{"c", "a"}, 3);
  EXPECT_THAT(slice.axis_names(), ElementsAre("c", "a"));
  EXPECT_THAT(slice.ranks(), ElementsAre(2, 8, 3, 9));
  EXPECT_EQ(slice.root(), mesh);
  EXPECT_FALSE(slice.is_root());
  const MeshLayout row = *slice.Slice(Names{"a"}, 9);
  EXPECT_THAT(row.ranks(), ElementsAre(3, 9));
  EXPECT_EQ(row.root(), mesh);
  EXPECT_EQ(row, *mesh.Slice(Names{"a"}, 3));
  EXPECT_EQ(*mesh.Slice(Names{"a", "b", "c"}, 0), mesh);
}

// Compares every slice, flattening and concatenation of a mesh of four axes
// with the ranks' coordinates.
TEST(MeshLayoutTest, FourAxes) {
  const MeshLayout mesh = Mesh({{"a", 2}, {"b", 1}, {"c", 3}, {"d", 2}});
  EXPECT_EQ(mesh.ToString(), "mesh(a=2, b=1, c=3, d=2)");
  for (int rank = 0; rank < mesh.size(); ++rank) {
    const MeshCoordinate at = *mesh.CoordinateOf(rank);
    EXPECT_EQ(((at[0] * 1 + at[1]) * 3 + at[2]) * 2 + at[3], rank);
    const MeshLayout slice = *mesh.Slice(Names{"d", "a"}, rank);
    for (int d = 0; d < 2; ++d) {
      for (int a = 0; a < 2; ++a) {
        EXPECT_EQ(slice.rank_at({d, a}), mesh.rank_at({a, 0, at[2], d}));
      }
    }
    EXPECT_EQ(*MeshLayout::Concatenate({*mesh.Slice(Names{"d"}, rank),
                                        *mesh.Slice(Names{"a"}, rank)}),
              slice);
  }
  const MeshLayout flat = *mesh.Flatten(Names{"a", "c"}, "ac");
  EXPECT_EQ(flat.rank_at({4, 0, 1}), mesh.rank_at({1, 0, 1, 1}));
  EXPECT_EQ(*flat.Unflatten("ac", {{"a", 2}, {"c", 3}})
                 ->Slice(Names{"a", "b", "c", "d"}, 0),
            *mesh.Slice(Names{"a", "c", "b", "d"}, 0)
                 ->Slice(Names{"a", "b", "c", "d"}, 0));
}

TEST(MeshLayoutTest, SliceErrorsNameTheCause) {
  const MeshLayout mesh = Mesh({{"a", 2}, {"b", 3}});
  const auto unknown = mesh.Slice(Names{"tp"}, 0);
  EXPECT_EQ(unknown.status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(unknown.status().message(), "mesh: no axis \"tp\"; it has a, b");
  EXPECT_THAT(std::string(mesh.Slice(Names{"a", "a"}, 0).status().message()),
              HasSubstr("named twice"));
  EXPECT_THAT(std::string(mesh.Slice(Names{}, 0).status().message()),
              HasSubstr("no axis named"));
  EXPECT_EQ(mesh.Slice(Names{"a"}, 6).status().message(),
            "mesh: rank 6 is not on mesh(a=2, b=3), so it has no slice a");
}

TEST(MeshLayoutTest, FlattenJoinsAxesInTheOrderNamed) {
  const MeshLayout mesh = Mesh({{"a", 2}, {"b", 3}, {"c", 2}});
  const MeshLayout flat = *mesh.Flatten(Names{"a", "c"}, "ac");
  EXPECT_EQ(flat.ToString(),
            "mesh(ac=4, b=3, ranks=[0,2,4,1,3,5,6,8,10,7,9,11])");
  EXPECT_THAT(flat.Slice(Names{"ac"}, 2)->ranks(), ElementsAre(2, 3, 8, 9));
  EXPECT_THAT(
      mesh.Flatten(Names{"c", "a"}, "ca")->Slice(Names{"ca"}, 2)->ranks(),
      ElementsAre(2, 8, 3, 9));
  EXPECT_THAT(mesh.Flatten(Names{"a", "b", "c"}, "all")->shape(),
              ElementsAre(12));
  EXPECT_EQ(flat.root(), mesh);
  EXPECT_FALSE(mesh.Flatten(Names{"a", "c"}, "b").ok());
}

TEST(MeshLayoutTest, UnflattenUndoesFlatten) {
  const MeshLayout mesh = Mesh({{"a", 2}, {"b", 3}, {"c", 2}});
  const MeshLayout flat = *mesh.Flatten(Names{"b", "c"}, "bc");
  EXPECT_EQ(*flat.Unflatten("bc", {{"b", 3}, {"c", 2}}), mesh);
  const MeshLayout split =
      *Mesh({{"x", 6}}).Unflatten("x", {{"h", 3}, {"l", 2}});
  EXPECT_EQ(split.rank_at({2, 1}), 5);
  EXPECT_EQ(mesh.Unflatten("b", {{"x", 2}, {"y", 2}}).status().message(),
            "mesh: cannot split axis \"b\" of size 3 into sizes (2, 2)");
  EXPECT_FALSE(mesh.Unflatten("b", {}).ok());
  EXPECT_FALSE(mesh.Unflatten("b", {{"x", 3}, {"y", 0}}).ok());
}

TEST(MeshLayoutTest, ConcatenateJoinsSlicesOfOneRank) {
  const MeshLayout mesh = Mesh({{"dp", 2}, {"fsdp", 3}, {"tp", 2}});
  for (int rank = 0; rank < mesh.size(); ++rank) {
    const MeshLayout fsdp = *mesh.Slice(Names{"fsdp"}, rank);
    const MeshLayout tp = *mesh.Slice(Names{"tp"}, rank);
    const MeshLayout dp = *mesh.Slice(Names{"dp"}, rank);
    EXPECT_EQ(*MeshLayout::Concatenate({fsdp, tp}),
              *mesh.Slice(Names{"fsdp", "tp"}, rank));
    EXPECT_EQ(*MeshLayout::Concatenate({tp, dp}),
              *mesh.Slice(Names{"tp", "dp"}, rank));
    EXPECT_EQ(*MeshLayout::Concatenate({dp, fsdp, tp}), mesh);
    EXPECT_EQ(*MeshLayout::Concatenate({tp}), tp);
  }
  const MeshLayout split =
      *Mesh({{"x", 4}}).Unflatten("x", {{"h", 2}, {"l", 2}});
  EXPECT_THAT(MeshLayout::Concatenate(
                  {*split.Slice(Names{"l"}, 3), *split.Slice(Names{"h"}, 3)})
                  ->ranks(),
              ElementsAre(0, 2, 1, 3));
}

TEST(MeshLayoutTest, ConcatenateRefusesWhatDoesNotFit) {
  const MeshLayout mesh = Mesh({{"a", 2}, {"b", 2}});
  const MeshLayout a0 = *mesh.Slice(Names{"a"}, 0);
  const MeshLayout a1 = *mesh.Slice(Names{"a"}, 1);
  const MeshLayout b0 = *mesh.Slice(Names{"b"}, 0);
  const auto message = [](std::vector<MeshLayout> slices) {
    return std::string(MeshLayout::Concatenate(slices).status().message());
  };
  EXPECT_THAT(message({}), HasSubstr("nothing"));
  EXPECT_THAT(message({a0, Mesh({{"c", 2}})}), HasSubstr("different meshes"));
  EXPECT_THAT(message({a0, a1}), HasSubstr("share no rank"));
  EXPECT_THAT(message({a0, b0, *mesh.Flatten(Names{"b", "a"}, "all")}),
              HasSubstr("overlap"));
  EXPECT_THAT(message({a0, *a0.Flatten(Names{"a"}, "c")}),
              HasSubstr("overlap"));
  const MeshLayout ones = Mesh({{"a", 1}, {"b", 1}});
  EXPECT_THAT(message({*ones.Slice(Names{"a"}, 0), *ones.Slice(Names{"a"}, 0)}),
              HasSubstr("used twice"));
}

}  // namespace
}  // namespace crosshatch
