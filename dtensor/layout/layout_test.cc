// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/layout/layout.h"

#include <algorithm>
#include <set>

#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "crosshatch/dtensor/layout/layout_testutil.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

MeshLayout Mesh(std::vector<int> sizes) {
  const std::vector<std::string> names = {"a", "b", "c", "d"};
  std::vector<MeshAxis> axes;
  for (size_t i = 0; i < sizes.size(); ++i)
    axes.push_back({names[i], sizes[i]});
  return MeshLayout::Create(std::move(axes)).value();
}

std::vector<int64_t> IndicesOf(const Interval& interval) {
  std::vector<int64_t> indices;
  for (int64_t i = interval.begin; i < interval.end; ++i) indices.push_back(i);
  return indices;
}

/// torch.chunk: pieces of ceil(n / k), then a short one, then empty ones.
std::vector<int64_t> Chunk(const std::vector<int64_t>& list, int k, int index) {
  const int64_t n = static_cast<int64_t>(list.size());
  const int64_t chunk = (n + k - 1) / k;
  std::vector<int64_t> piece;
  for (int64_t i = index * chunk; i < std::min(n, (index + 1) * chunk); ++i) {
    piece.push_back(list[i]);
  }
  return piece;
}

TEST(LayoutTest, ShardsAreNestedChunks) {
  const MeshLayout mesh = Mesh({2, 3, 2});
  const std::vector<std::vector<int>> orders = {
      {}, {0}, {1}, {0, 1}, {1, 0}, {2, 0, 1}, {0, 1, 2}, {2, 1, 0}};
  for (const std::vector<int>& order : orders) {
    for (int64_t size = 0; size <= 30; ++size) {
      const Layout layout(mesh, {{{order.begin(), order.end()}, 1}});
      for (int rank = 0; rank < mesh.size(); ++rank) {
        const MeshCoordinate at = mesh.CoordinateAt(rank);
        std::vector<int64_t> expected;
        for (int64_t i = 0; i < size; ++i) expected.push_back(i);
        for (int axis : order) {
          expected = Chunk(expected, mesh.size(axis), at[axis]);
        }
        const Interval part = layout.DimInterval(0, size, at);
        EXPECT_EQ(IndicesOf(part), expected)
            << layout.ToString() << " size " << size << " rank " << rank;
        EXPECT_GE(part.begin, 0);
        EXPECT_LE(part.end, size);
      }
    }
  }
}

TEST(LayoutTest, UnitsStayTogether) {
  const MeshLayout mesh = Mesh({2, 2});
  for (int64_t unit : {1, 2, 3, 5, 64}) {
    for (int64_t size = 0; size <= 23; ++size) {
      const Layout by_unit(mesh, {{{1, 0}, unit}});
      const Layout of_units(mesh, {{{1, 0}, 1}});
      for (int rank = 0; rank < 4; ++rank) {
        const MeshCoordinate at = mesh.CoordinateAt(rank);
        const Interval part = by_unit.DimInterval(0, size, at);
        const Interval units =
            of_units.DimInterval(0, (size + unit - 1) / unit, at);
        EXPECT_EQ(part, (Interval{std::min(units.begin * unit, size),
                                  std::min(units.end * unit, size)}));
      }
    }
  }
  // 5 heads of width 4 over 2 ranks: 3 heads and 2.
  const Layout heads(Mesh({2}), {{{0}, 4}});
  EXPECT_EQ(heads.DimInterval(0, 20, {0}), (Interval{0, 12}));
  EXPECT_EQ(heads.DimInterval(0, 20, {1}), (Interval{12, 20}));
}

TEST(LayoutTest, OwnersHoldEachElementOnce) {
  const MeshLayout mesh = Mesh({2, 3, 2});
  for (const char* text :
       {"[R,R,R]", "[S(0),R,S(1)]", "[S(0),S(0),R]", "[_S(1,6),S(1),S(1)]",
        "[_S(0,3),S(0),S(1)]", "[R,S(1),R]"}) {
    const Layout layout = LayoutOf(mesh, 2, text);
    for (const Shape& shape :
         {Shape{5, 7}, Shape{1, 1}, Shape{0, 3}, Shape{12, 2}}) {
      std::vector<int> count(shape[0] * shape[1]);
      for (int rank = 0; rank < mesh.size(); ++rank) {
        const MeshCoordinate at = mesh.CoordinateAt(rank);
        if (!layout.IsOwner(at)) continue;
        const Box box = layout.LocalBox(shape, at);
        for (int64_t i = 0; i < box.sizes[0]; ++i) {
          for (int64_t j = 0; j < box.sizes[1]; ++j) {
            ++count[(box.offsets[0] + i) * shape[1] + box.offsets[1] + j];
          }
        }
      }
      EXPECT_THAT(count, ::testing::Each(1)) << text;
    }
  }
}

TEST(LayoutTest, FsdpOverTpIsAnOrder) {
  // 9 rows: 4 tensor-parallel chunks of 3, 3, 3, 0; each cut by FSDP into 2.
  const MeshLayout mesh = *MeshLayout::Create({{"fsdp", 2}, {"tp", 4}});
  const Layout layout = LayoutOf(mesh, 2, "[_S(0,4),S(0)]");
  EXPECT_THAT(layout.axes_of_dim(0), ElementsAre(1, 0));
  EXPECT_EQ(layout, Layout(mesh, {{{1, 0}}, {}}));
  EXPECT_EQ(layout,
            Layout::Replicated(mesh, 2).WithShard(1, 0).WithShard(0, 0));
  EXPECT_EQ(layout.DimInterval(0, 9, {0, 1}), (Interval{3, 5}));
  EXPECT_EQ(layout.DimInterval(0, 9, {1, 1}), (Interval{5, 6}));
  EXPECT_EQ(layout.DimInterval(0, 9, {1, 3}).size(), 0);
  EXPECT_EQ(layout.LocalBox({9, 4}, {1, 2}), (Box{{8, 0}, {1, 4}}));
  EXPECT_EQ(layout.ToString(), "[_S(0,4),S(0)]");
  EXPECT_EQ(layout.ToStringByDim(), "{tp,fsdp} {}");
}

TEST(LayoutTest, PlacementsRoundTripForEveryOrder) {
  const MeshLayout mesh = Mesh({2, 3, 5, 2});
  std::vector<int> order = {0, 1, 2, 3};
  std::set<std::string> texts;
  do {
    for (size_t cut = 0; cut <= order.size(); ++cut) {
      const Layout layout(mesh, {{{order.begin(), order.begin() + cut}},
                                 {{order.begin() + cut, order.end()}}});
      texts.insert(layout.ToString());
      EXPECT_EQ(*Layout::FromPlacements(mesh, 2, layout.ToPlacements()), layout)
          << layout.ToString() << " " << layout.ToStringByDim();
    }
  } while (std::next_permutation(order.begin(), order.end()));
  EXPECT_EQ(texts.size(), 24u * 5u);
}

// Every layout from placements, including axes in each order and pending sums,
// equals the one from its axes' names, and prints them.
TEST(LayoutTest, AxisNamesGiveTheLayoutOfPlacements) {
  for (const std::vector<int>& sizes :
       std::vector<std::vector<int>>{{3}, {2, 3}, {2, 2, 2}}) {
    const MeshLayout mesh = Mesh(sizes);
    for (int ndim = 0; ndim <= 3; ++ndim) {
      for (const Layout& each : AllLayouts(mesh, ndim, /*sums=*/true)) {
        const Layout expected =
            Layout::FromPlacements(mesh, ndim, each.ToPlacements()).value();
        std::vector<std::vector<std::string>> names(ndim);
        std::string printed;
        for (int dim = 0; dim < ndim; ++dim) {
          for (int axis : expected.axes_of_dim(dim)) {
            names[dim].push_back(mesh.axis_name(axis));
          }
          absl::StrAppend(&printed, dim > 0 ? " {" : "{",
                          absl::StrJoin(names[dim], ","), "}");
        }
        LayoutOptions options;
        for (int axis = 0; axis < mesh.ndim(); ++axis) {
          if (!expected.state_of_axis(axis).is_partial()) continue;
          options.partial.push_back({mesh.axis_name(axis)});
          absl::StrAppend(&printed, printed.empty() ? "" : " ", "P(sum){",
                          mesh.axis_name(axis), "}");
        }
        const absl::StatusOr<Layout> layout = Layout::Of(mesh, names, options);
        ASSERT_TRUE(layout.ok()) << layout.status();
        EXPECT_EQ(*layout, expected) << printed;
        EXPECT_EQ(layout->ToStringByDim(), printed);
      }
    }
  }
}

TEST(LayoutTest, AxisNamesTakeUnitsAndReductions) {
  const MeshLayout mesh = Mesh({2, 3, 2});
  const Layout layout =
      Layout::Of(
          mesh, {{"b", "a"}, {}},
          {.partial = {{.axis = "c", .op = ReduceOp::kMax}}, .units = {64}})
          .value();
  EXPECT_EQ(layout.ToStringByDim(), "{b,a}/64 {} P(max){c}");
  // One dim of two axes, not two dims.
  EXPECT_EQ(Layout::Of(mesh, {{"a", "b"}})->ToStringByDim(), "{a,b}");
}

TEST(LayoutTest, AxisNamesThatAreWrongAreNamed) {
  const MeshLayout mesh = Mesh({2, 3});
  const auto error = [&](const std::vector<std::vector<std::string>>& names,
                         const LayoutOptions& options = {}) {
    const absl::Status status = Layout::Of(mesh, names, options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_EQ(
      error({{}, {"tp"}}),
      "layout: axis \"tp\" splits dim 1: mesh(a=2, b=3) has no such axis");
  EXPECT_EQ(error({{"a"}, {"b", "a"}}),
            "layout: axis \"a\" of mesh(a=2, b=3) splits dim 0 and splits dim "
            "1: list each axis once");
  EXPECT_EQ(error({{"a", "a"}}),
            "layout: axis \"a\" of mesh(a=2, b=3) splits dim 0 and splits dim "
            "0: list each axis once");
  EXPECT_EQ(error({{"a"}}, {.partial = {{"a"}}}),
            "layout: axis \"a\" of mesh(a=2, b=3) splits dim 0 and is partial "
            "in sum: list each axis once");
  EXPECT_EQ(error({{"a"}}, {.units = {2, 2}}),
            "layout: 2 units for 1 dims: give one unit for each dim");
  EXPECT_EQ(error({{"a"}, {}}, {.units = {1, 64}}),
            "layout: unit 64 of dim 1, which no axis splits: give it unit 1");
}

TEST(LayoutDeathTest, OfAnotherNumberOfDimsIsNamed) {
  const MeshLayout mesh = Mesh({2, 3});
  const Layout rows = Layout::Of(mesh, {{"a"}}).value();
  EXPECT_DEATH(LayoutSpec(rows).Of("DistributeTensor", mesh, 2),
               "DistributeTensor: the layout .a. has 1 dim, the tensor 2: give "
               "one list of axes per dim, .. for a whole one");
}

TEST(LayoutTest, PrintsPyTorchsNotation) {
  const MeshLayout mesh = Mesh({2, 3, 2});
  EXPECT_EQ(Layout(mesh, {{{2, 0}}, {}}, {{}, ReduceOp::kSum}).ToString(),
            "[_S(0,2),P(sum),S(0)]");
  EXPECT_EQ(Layout(mesh, {{{2, 0}}, {}}, {{}, ReduceOp::kSum}).ToStringByDim(),
            "{c,a} {} P(sum){b}");
  EXPECT_EQ(Layout(mesh, {{{0}, 64}, {{2}}}).ToString(), "[S(0)/64,R,S(1)]");
  EXPECT_EQ(Layout(mesh, {{{0}, 64}, {{2}}}).ToStringByDim(), "{a}/64 {c}");
  EXPECT_EQ(LayoutOf(mesh, 3, "[S(-1),R,S(-3)]").ToString(), "[S(2),R,S(0)]");
  EXPECT_EQ(Layout::Replicated(mesh, 0).ToString(), "[R,R,R]");
}

TEST(LayoutTest, RefusesInvalidLayouts) {
  const MeshLayout mesh = Mesh({2, 3});
  const auto from = [&mesh](int ndim, const std::string& text) {
    const absl::Status status =
        Layout::FromPlacements(mesh, ndim, *ParsePlacements(text)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    return std::string(status.message());
  };
  EXPECT_EQ(from(1, "[R]"), "layout: 1 placements [R] for mesh(a=2, b=3)");
  EXPECT_EQ(from(1, "[R,S(1)]"),
            "layout: S(1) in [R,S(1)] for a tensor of 1 dims");
  EXPECT_THAT(from(1, "[R,S(-2)]"), HasSubstr("S(-2)"));
  EXPECT_THAT(from(1, "[_S(0,2),S(0)]"),
              HasSubstr("later axes never number 2 pieces of dim 0"));
  EXPECT_THAT(from(1, "[S(0),_S(0,2)]"), HasSubstr("never number 2 pieces"));
  EXPECT_EQ(from(1, "[P(sum),P(max)]"),
            "layout: a tensor on mesh(a=2, b=3) cannot be partial in sum and "
            "max: the result would depend on their order");
  EXPECT_TRUE(
      Layout::FromPlacements(mesh, 1, *ParsePlacements("[P(sum),P(avg)]"))
          .ok());
  const auto create = [&mesh](std::vector<DimSharding> dims,
                              Layout::Partials partials = {}) {
    const absl::Status status =
        Layout::Create(mesh, std::move(dims), std::move(partials)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(create({{{0}}, {{0}}}), HasSubstr("\"a\" splits dims 0 and 1"));
  EXPECT_THAT(create({{{1, 1}}}), HasSubstr("\"b\" splits dims 0 and 0"));
  EXPECT_THAT(create({{{2}}}), HasSubstr("split by axis 2"));
  EXPECT_THAT(create({{{0}, 0}}), HasSubstr("unit 0"));
  EXPECT_THAT(create({{{0}}}, {ReduceOp::kSum}),
              HasSubstr("cannot be partial"));
  EXPECT_THAT(create({{}}, {{}, {}, {}}), HasSubstr("3 axes"));
}

TEST(LayoutTest, DerivedLayoutsChangeWhatIsNamed) {
  const MeshLayout mesh = Mesh({2, 3, 2});
  const Layout base(mesh, {{{0}, 4}, {{2}}}, {{}, ReduceOp::kSum});
  EXPECT_EQ(base.WithShard(1, 0).ToString(), "[S(0)/4,S(0)/4,S(1)]");
  EXPECT_THAT(base.WithShard(1, 0, 0).axes_of_dim(0), ElementsAre(1, 0));
  EXPECT_THAT(base.WithShard(0, 1).axes_of_dim(1), ElementsAre(2, 0));
  EXPECT_EQ(base.WithShard(0, 0), base);
  EXPECT_EQ(base.WithReplicate(0).ToString(), "[R,P(sum),S(1)]");
  EXPECT_EQ(base.WithReplicate(0).unit(0), 1);
  EXPECT_EQ(base.WithReplicate(1).ToString(), "[S(0)/4,R,S(1)]");
  EXPECT_EQ(base.WithPartial(0, ReduceOp::kAvg).ToString(),
            "[P(avg),P(sum),S(1)]");
  EXPECT_EQ(base.WithDim(0, {{2}, 8}).ToString(), "[R,P(sum),S(0)/8]");
  EXPECT_EQ(base.WithDim(1, {}).ToString(), "[S(0)/4,P(sum),R]");
  const MeshLayout other = *MeshLayout::Create({{"x", 2}, {"y", 3}, {"z", 2}});
  EXPECT_EQ(base.WithMesh(other).mesh(), other);
  EXPECT_EQ(base.WithMesh(other).ToString(), base.ToString());
}

TEST(LayoutTest, PartsAreConsistent) {
  const Layout layout(Mesh({2, 3, 2}), {{{2, 1}, 3}, {}}, {ReduceOp::kMax});
  EXPECT_EQ(layout.ndim(), 2);
  EXPECT_TRUE(layout.is_sharded(0));
  EXPECT_FALSE(layout.is_sharded(1));
  EXPECT_TRUE(layout.is_partial());
  EXPECT_FALSE(layout.is_replicated());
  EXPECT_EQ(layout.num_chunks(0), 6);
  EXPECT_EQ(layout.num_chunks(1), 1);
  EXPECT_EQ(layout.state_of_axis(2).dim, 0);
  EXPECT_EQ(layout.state_of_axis(0).op, ReduceOp::kMax);
  EXPECT_EQ(Layout(layout.mesh(), {layout.dims().begin(), layout.dims().end()},
                   layout.partials()),
            layout);
}

TEST(LayoutTest, EqualityIsByValue) {
  const Layout a = LayoutOf(Mesh({2, 2}), 2, "[S(0),P(sum)]");
  const Layout b = LayoutOf(Mesh({2, 2}), 2, "[S(0),P(sum)]");
  EXPECT_EQ(a, b);
  EXPECT_EQ(absl::HashOf(a), absl::HashOf(b));
  EXPECT_NE(a, LayoutOf(Mesh({2, 2}), 3, "[S(0),P(sum)]"));
  EXPECT_NE(a, LayoutOf(Mesh({2, 3}), 2, "[S(0),P(sum)]"));
  EXPECT_NE(a, LayoutOf(Mesh({2, 2}), 2, "[S(0),P(avg)]"));
  EXPECT_NE(a, LayoutOf(Mesh({2, 2}), 2, "[S(0),R]"));
  EXPECT_NE(a, a.WithDim(0, {{0}, 2}));
  EXPECT_NE(LayoutOf(Mesh({2, 2}), 1, "[_S(0,2),S(0)]"),
            LayoutOf(Mesh({2, 2}), 1, "[S(0),S(0)]"));
}

TEST(LayoutTest, FineAxesSplitSingleElementsBeneathUnits) {
  const MeshLayout mesh = *MeshLayout::Create({{"fsdp", 2}, {"tp", 2}});
  // 3 heads of 4 rows: tp takes 8 and 4 rows, fsdp halves them.
  const Layout layout =
      Layout(mesh, {{{1}, 4}, {}}).WithFineShard(/*axis=*/0, /*dim=*/0);
  EXPECT_EQ(layout.ToString(), "[_S(0,2),S(0)/4]");
  EXPECT_EQ(layout.ToStringByDim(), "{tp|fsdp}/4 {}");
  EXPECT_EQ(layout.DimInterval(0, 12, {0, 0}), (Interval{0, 4}));
  EXPECT_EQ(layout.DimInterval(0, 12, {1, 0}), (Interval{4, 8}));
  EXPECT_EQ(layout.DimInterval(0, 12, {0, 1}), (Interval{8, 10}));
  EXPECT_EQ(layout.DimInterval(0, 12, {1, 1}), (Interval{10, 12}));
  // Without the coarse axis nothing has the unit.
  EXPECT_EQ(layout.WithReplicate(1),
            Layout::Replicated(mesh, 2).WithShard(0, 0));
  EXPECT_EQ(layout.WithReplicate(0), Layout(mesh, {{{1}, 4}, {}}));
  EXPECT_NE(layout, Layout(mesh, {{{1, 0}, 4}, {}}));
}

TEST(LayoutTest, CutsMakeUnevenChunks) {
  const MeshLayout mesh = *MeshLayout::Create({{"fsdp", 4}, {"tp", 2}});
  const Layout layout =
      Layout::Replicated(mesh, 2).WithShard(0, 0).WithCuts(0, {0, 3, 3});
  EXPECT_EQ(layout.ToString(), "[S(0)@0,3,3,R]");
  EXPECT_EQ(layout.ToStringByDim(), "{fsdp}@0,3,3 {}");
  EXPECT_THAT(layout.DimIntervals(0, 5),
              ElementsAre(Interval{0, 0}, Interval{0, 3}, Interval{3, 3},
                          Interval{3, 5}));
  // As far as there are elements.
  EXPECT_THAT(layout.DimIntervals(0, 2),
              ElementsAre(Interval{0, 0}, Interval{0, 2}, Interval{2, 2},
                          Interval{2, 2}));
  for (int f = 0; f < 4; ++f) {
    EXPECT_EQ(layout.DimInterval(0, 5, {f, 1}), layout.DimIntervals(0, 5)[f]);
  }
  EXPECT_NE(layout, layout.WithCuts(0, {0, 3, 4}));
  EXPECT_NE(layout, layout.WithCuts(0, {}));
  EXPECT_EQ(layout,
            layout.WithReplicate(0).WithShard(0, 0).WithCuts(0, {0, 3, 3}));
  EXPECT_EQ(absl::HashOf(layout), absl::HashOf(layout.WithCuts(0, {0, 3, 3})));
  // Another axis cuts other chunks.
  EXPECT_EQ(layout.WithShard(1, 0).ToString(), "[S(0),S(0)]");
  EXPECT_EQ(layout.WithReplicate(0).ToString(), "[R,R]");
}

TEST(LayoutTest, CutsApplyWithinTheChunksOfOtherAxes) {
  const MeshLayout mesh = *MeshLayout::Create({{"fsdp", 3}, {"tp", 2}});
  // 3 heads of 4 rows: tp takes 8 and 4 rows, of which fsdp takes 5, 1 and the
  // rest.
  const Layout layout = Layout(mesh, {{{1}, 4}, {}})
                            .WithFineShard(/*axis=*/0, /*dim=*/0)
                            .WithCuts(0, {5, 6});
  EXPECT_EQ(layout.ToString(), "[_S(0,2)@5,6,S(0)/4]");
  EXPECT_EQ(layout.ToStringByDim(), "{tp|fsdp}/4@5,6 {}");
  EXPECT_THAT(layout.DimIntervals(0, 12),
              ElementsAre(Interval{0, 5}, Interval{5, 6}, Interval{6, 8},
                          Interval{8, 12}, Interval{12, 12}, Interval{12, 12}));
}

TEST(LayoutTest, PrintsManyCutsAsACount) {
  const MeshLayout mesh = *MeshLayout::Create({{"fsdp", 64}});
  const Layout layout = Layout::Replicated(mesh, 1).WithShard(0, 0).WithCuts(
      0, std::vector<int64_t>(63, 7));
  EXPECT_EQ(layout.ToString(), "[S(0)@63 cuts]");
}

TEST(LayoutTest, NamesCutsThatDoNotFit) {
  const MeshLayout mesh = Mesh({2, 3});
  const auto create = [&mesh](DimSharding sharding) {
    return std::string(
        Layout::Create(mesh, {std::move(sharding)}).status().message());
  };
  EXPECT_EQ(create({.axes = {0, 1}, .cuts = {1}}),
            "layout: dim 0 has 1 cuts, but its last axis \"b\" of 3 ranks "
            "needs 2");
  EXPECT_EQ(create({.axes = {1}, .cuts = {3, 2}}),
            "layout: the cuts 3,2 of dim 0 are not ascending from 0 on");
  EXPECT_EQ(create({.axes = {0, 1}, .unit = 4, .cuts = {1, 2}}),
            "layout: dim 0 has cuts, and its last axis \"b\" splits units of "
            "4; make it a fine axis");
}

TEST(LayoutDeathTest, NamesTheDimsOfAnotherTensor) {
  const Layout layout = Layout::Of(Mesh({2, 3}), {{"a"}, {}, {"b"}}).value();
  const Shape matrix = {4, 6};
  EXPECT_DEATH(
      layout.LocalShape(matrix, {0, 0}),
      "the layout \\[S\\(0\\),S\\(2\\)\\] is for tensors of 3 dims, the "
      "tensor is \\[4, 6\\]");
}

TEST(LayoutDeathTest, NamesAnAxisThatIsNotThere) {
  const Layout layout = Layout::Replicated(Mesh({2, 3}), 2);
  EXPECT_DEATH((void)layout.WithShard(2, 0), "axis 2 of mesh\\(a=2, b=3\\)");
  EXPECT_DEATH((void)layout.WithShard(-1, 0, 0), "axis -1 of mesh");
  EXPECT_DEATH((void)layout.WithFineShard(2, 0), "axis 2 of mesh");
  EXPECT_DEATH((void)layout.WithReplicate(2), "axis 2 of mesh");
  EXPECT_DEATH((void)layout.WithPartial(7, ReduceOp::kSum), "axis 7 of mesh");
  EXPECT_DEATH((void)layout.WithDim(0, {.axes = {2}}), "axis 2 of mesh");
  EXPECT_DEATH((void)layout.state_of_axis(2), "axis 2 of mesh");
  EXPECT_DEATH((void)Layout::Replicated(Mesh({2}), -1),
               "a layout on mesh\\(a=2\\)");
}

}  // namespace
}  // namespace crosshatch
