// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/layout/layout_pair.h"

#include <algorithm>
#include <vector>

#include "crosshatch/dtensor/layout/layout_testutil.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

const std::vector<Shape> kShapes = {{12, 6}, {5, 7}, {1, 2}, {0, 3}};

/// All layouts without reductions, and some with units.
std::vector<Layout> Layouts(const MeshLayout& mesh) {
  std::vector<Layout> layouts = AllLayouts(mesh, 2, {});
  const Layout r = Layout::Replicated(mesh, 2);
  layouts.push_back(r.WithDim(0, {.axes = {1, 0}, .unit = 2}));
  layouts.push_back(r.WithDim(0, {.axes = {1, 0}, .unit = 4, .fine_axes = 1}));
  layouts.push_back(r.WithDim(1, {.axes = {0}, .unit = 3}));
  layouts.push_back(r.WithDim(0, {.axes = {1}, .cuts = {1, 4}}));
  layouts.push_back(r.WithDim(0, {.axes = {1, 0}, .cuts = {3}}));
  return layouts;
}

/// Returns how much of `wanted` the members of a group hold, each element once.
int64_t HeldBy(const std::vector<int>& ranks, const Layout& from,
               ShapeView shape, const Box& wanted) {
  std::vector<Box> counted;
  int64_t held = 0;
  for (int rank : ranks) {
    const Box box = from.LocalBox(shape, *from.mesh().CoordinateOf(rank));
    if (std::find(counted.begin(), counted.end(), box) != counted.end()) {
      continue;
    }
    counted.push_back(box);
    held += Intersect(box, wanted).numel();
  }
  return held;
}

TEST(LayoutPairTest, TheLargestShardIsTheLargestOfAllRanks) {
  const MeshLayout mesh = OracleMesh({2, 3});
  for (const Shape& shape : kShapes) {
    for (const Layout& layout : Layouts(mesh)) {
      int64_t most = 0;
      for (int i = 0; i < mesh.size(); ++i) {
        most = std::max(most,
                        layout.LocalBox(shape, mesh.CoordinateAt(i)).numel());
      }
      EXPECT_EQ(LargestShard(layout, shape), most) << layout.ToString();
    }
  }
}

TEST(LayoutPairTest, MostMissingIsThatOfTheRankThatMissesMost) {
  const MeshLayout mesh = OracleMesh({2, 3});
  for (const Shape& shape : kShapes) {
    for (const Layout& from : Layouts(mesh)) {
      for (const Layout& to : Layouts(mesh)) {
        for (const AxisList& pooled :
             {AxisList{}, AxisList{0}, AxisList{1}, AxisList{0, 1}}) {
          if (std::any_of(pooled.begin(), pooled.end(), [&to](int axis) {
                return !to.state_of_axis(axis).is_replicate();
              })) {
            continue;
          }
          int64_t most = 0;
          for (int i = 0; i < mesh.size(); ++i) {
            const MeshCoordinate at = mesh.CoordinateAt(i);
            const Box wanted = to.LocalBox(shape, at);
            most = std::max(
                most, wanted.numel() - HeldBy(mesh.GroupRanks(pooled, at), from,
                                              shape, wanted));
          }
          ASSERT_EQ(MostMissing(from, to, shape, pooled), most)
              << from.ToString() << " -> " << to.ToString() << " of "
              << ToString(shape) << " with " << pooled.size() << " pooled";
        }
      }
    }
  }
}

TEST(LayoutPairTest, AReductionIsAllThatIsLeft) {
  const MeshLayout mesh = *MeshLayout::Create({{"a", 2}, {"b", 2}});
  const Layout whole = Layout::Replicated(mesh, 2);
  const Layout rows = whole.WithShard(0, 0);
  const Layout sums = rows.WithPartial(1, ReduceOp::kSum);
  EXPECT_TRUE(IsBeforeReduction(rows, rows));
  EXPECT_TRUE(IsBeforeReduction(sums, rows));
  EXPECT_TRUE(IsBeforeReduction(sums, rows.WithShard(1, 1)));
  EXPECT_FALSE(IsBeforeReduction(rows, sums));
  EXPECT_FALSE(IsBeforeReduction(sums, whole));
}

TEST(LayoutPairTest, NeededAxesAreTheFewestThatDo) {
  const MeshLayout mesh = OracleMesh({2, 3});
  for (int64_t size : {12, 7, 5, 2, 1, 0}) {
    for (const Layout& from : AllLayouts(mesh, 1, {})) {
      for (const Layout& to : AllLayouts(mesh, 1, {})) {
        const Shape shape = {size};
        const auto suffices = [&](const AxisList& axes) {
          for (int i = 0; i < mesh.size(); ++i) {
            const MeshCoordinate at = mesh.CoordinateAt(i);
            const Box wanted = to.LocalBox(shape, at);
            if (HeldBy(mesh.GroupRanks(axes, at), from, shape, wanted) !=
                wanted.numel()) {
              return false;
            }
          }
          return true;
        };
        const AxisList needed = NeededAxes(from, to, 0, size);
        EXPECT_TRUE(std::is_sorted(needed.begin(), needed.end()));
        EXPECT_TRUE(suffices(needed))
            << from.ToString() << " -> " << to.ToString() << " of " << size;
        // An axis that no longer splits is needed even if all chunks along it
        // but the first are empty.
        if (size < mesh.size()) continue;
        for (int axis : needed) {
          AxisList fewer;
          for (int other : needed) {
            if (other != axis) fewer.push_back(other);
          }
          EXPECT_FALSE(suffices(fewer))
              << from.ToString() << " -> " << to.ToString() << " of " << size
              << " without axis " << axis;
        }
      }
    }
  }
}

}  // namespace
}  // namespace crosshatch
