// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/layout/view_layout.h"

#include <gtest/gtest.h>

#include <iostream>
#include <map>
#include <vector>

#include "crosshatch/dtensor/layout/layout_testutil.h"

namespace crosshatch {
namespace {

// The row-major indices of each rank's elements.
using Held = std::vector<std::vector<int64_t>>;

Held HeldBy(const Layout& layout, const Shape& shape) {
  Held held;
  for (int i = 0; i < layout.mesh().size(); ++i) {
    const Box box = layout.LocalBox(shape, layout.mesh().CoordinateAt(i));
    std::vector<int64_t> elements;
    for (int64_t e = 0; e < NumElements(shape); ++e) {
      bool inside = true;
      int64_t rest = e;
      for (int d = static_cast<int>(shape.size()); d-- > 0;) {
        const int64_t at = rest % shape[d];
        rest /= shape[d];
        inside = inside && at >= box.offsets[d] &&
                 at < box.offsets[d] + box.sizes[d];
      }
      if (inside) elements.push_back(e);
    }
    held.push_back(std::move(elements));
  }
  return held;
}

// Returns every layout of tensors of these sizes, with all units and all
// numbers of axes that have them.
std::vector<Layout> LayoutsInUnits(const MeshLayout& mesh, const Shape& shape) {
  std::vector<Layout> layouts =
      AllLayouts(mesh, static_cast<int>(shape.size()), {});
  for (int d = 0; d < static_cast<int>(shape.size()); ++d) {
    const std::vector<Layout> before = layouts;
    for (const Layout& layout : before) {
      if (!layout.is_sharded(d)) continue;
      DimSharding sharding = layout.sharding(d);
      for (int64_t unit = 2; unit <= shape[d]; ++unit) {
        for (int fine = 0; fine < static_cast<int>(sharding.axes.size());
             ++fine) {
          sharding.unit = unit;
          sharding.fine_axes = fine;
          layouts.push_back(layout.WithDim(d, sharding));
        }
      }
    }
  }
  return layouts;
}

struct ViewCase {
  Shape in;
  Shape out;
};

void ExpectFoundExactlyWhereThereIsOne(const std::vector<int>& mesh_sizes,
                                       const std::vector<ViewCase>& cases) {
  const MeshLayout mesh = OracleMesh(mesh_sizes);
  int found = 0;
  int refused = 0;
  for (const ViewCase& c : cases) {
    std::map<Held, Layout> there_is;
    for (const Layout& layout : LayoutsInUnits(mesh, c.out)) {
      there_is.emplace(HeldBy(layout, c.out), layout);
    }
    for (const Layout& layout : LayoutsInUnits(mesh, c.in)) {
      const Held held = HeldBy(layout, c.in);
      const std::optional<Layout> view = ViewLayout(layout, c.in, c.out);
      const auto truth = there_is.find(held);
      ASSERT_EQ(view.has_value(), truth != there_is.end())
          << ToString(c.in) << " as " << ToString(c.out) << " in "
          << layout.ToString() << ": "
          << (view.has_value() ? view->ToString() : truth->second.ToString());
      if (view.has_value()) {
        ASSERT_EQ(HeldBy(*view, c.out), held)
            << ToString(c.in) << " as " << ToString(c.out) << " in "
            << layout.ToString() << ": " << view->ToString();
      }
      (view.has_value() ? found : refused) += 1;
    }
  }
  std::cout << mesh.ToString() << ": " << found << " layouts carried over, "
            << refused << " refused\n";
  EXPECT_GT(found, 0);
  EXPECT_GT(refused, 0);
}

const std::vector<ViewCase> kSmall = {
    {{6}, {2, 3}},       {{6}, {3, 2}},       {{2, 3}, {6}},
    {{3, 2}, {6}},       {{2, 3}, {3, 2}},    {{4, 2}, {2, 4}},
    {{8}, {2, 2, 2}},    {{2, 2, 2}, {8}},    {{2, 2, 2}, {4, 2}},
    {{5}, {1, 5}},       {{1, 5}, {5}},       {{1, 1}, {}},
    {{2, 1, 3}, {2, 3}}, {{3, 4}, {3, 2, 2}}, {{3, 2, 2}, {3, 4}},
    {{0, 3}, {3, 0}},    {{2, 0}, {0}},       {{7}, {7, 1}},
    {{9}, {3, 3}},       {{3, 3}, {9}},       {{10}, {5, 2}},
};

TEST(ViewLayout, IsFoundExactlyWhereThereIsOneOnOneAxis) {
  for (int ranks : {2, 3, 4}) {
    ExpectFoundExactlyWhereThereIsOne({ranks}, kSmall);
  }
}

TEST(ViewLayout, IsFoundExactlyWhereThereIsOneOnTwoAxes) {
  ExpectFoundExactlyWhereThereIsOne({2, 2}, kSmall);
  ExpectFoundExactlyWhereThereIsOne({2, 3}, {{{6}, {2, 3}},
                                             {{2, 3}, {6}},
                                             {{3, 2}, {6}},
                                             {{6}, {3, 2}},
                                             {{2, 6}, {12}},
                                             {{12}, {2, 6}}});
}

TEST(ViewLayout, CarriesCuts) {
  const MeshLayout mesh = OracleMesh({3});
  const Layout rows =
      Layout::Replicated(mesh, 2).WithShard(0, 0).WithCuts(0, {0, 4});
  const auto flat = ViewLayout(rows, {5, 6}, {30});
  ASSERT_TRUE(flat.has_value());
  EXPECT_EQ(flat->ToString(), "[S(0)@0,24]");
  EXPECT_EQ(ViewLayout(*flat, {30}, {5, 6}), rows);
  const auto pairs = ViewLayout(rows, {5, 6}, {5, 2, 3});
  ASSERT_TRUE(pairs.has_value());
  EXPECT_EQ(pairs->ToString(), "[S(0)@0,4]");
  EXPECT_FALSE(ViewLayout(*flat, {30}, {2, 15}).has_value());
}

TEST(ViewLayout, CarriesWholeHeads) {
  const MeshLayout mesh = OracleMesh({2});
  // Five heads of four: 3 and 2.
  const Layout heads =
      Layout::Replicated(mesh, 2).WithDim(1, {.axes = {0}, .unit = 4});
  const auto split = ViewLayout(heads, {2, 20}, {2, 5, 4});
  ASSERT_TRUE(split.has_value());
  EXPECT_EQ(split->ToString(), "[S(1)]");
  EXPECT_EQ(ViewLayout(*split, {2, 5, 4}, {2, 20}), heads);
  // Three and a half heads each.
  EXPECT_FALSE(ViewLayout(Layout::Replicated(mesh, 2).WithShard(0, 1), {2, 20},
                          {2, 5, 4})
                   .has_value());
}

TEST(ViewLayout, KeepsPendingReductions) {
  const MeshLayout mesh = OracleMesh({2, 2});
  const Layout layout = Layout::Replicated(mesh, 2).WithShard(0, 0).WithPartial(
      1, ReduceOp::kMax);
  const auto view = ViewLayout(layout, {4, 3}, {12});
  ASSERT_TRUE(view.has_value());
  EXPECT_EQ(view->state_of_axis(1).op, ReduceOp::kMax);
  EXPECT_TRUE(view->state_of_axis(1).is_partial());
}

TEST(ViewLayoutDeathTest, ChecksTheNumberOfElements) {
  EXPECT_DEATH(
      ViewLayout(Layout::Replicated(OracleMesh({2}), 1), {6}, {4}).has_value(),
      "a view of \\[6\\] as \\[4\\]");
}

}  // namespace
}  // namespace crosshatch
