// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/redistribute_plan.h"

#include <algorithm>
#include <iostream>
#include <random>

#include "absl/strings/str_cat.h"
#include "crosshatch/dtensor/redistribute_interpreter.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kElementSize = 4;

MeshLayout Mesh(std::vector<int> sizes) {
  const std::vector<std::string> names = {"dp", "tp", "cp"};
  std::vector<MeshAxis> axes;
  for (size_t i = 0; i < sizes.size(); ++i) {
    axes.push_back({names[i], sizes[i]});
  }
  return MeshLayout::Create(std::move(axes)).value();
}

Layout Parse(const MeshLayout& mesh, int ndim, const std::string& text) {
  return Layout::FromPlacements(mesh, ndim, ParsePlacements(text).value())
      .value();
}

RedistributePlan Plan(const Layout& from, const Layout& to, ShapeView shape) {
  return PlanRedistribute(from, to, shape, kElementSize).value();
}

std::vector<int> PartialAxes(const Layout& layout) {
  std::vector<int> axes;
  for (int axis = 0; axis < layout.mesh().ndim(); ++axis) {
    if (layout.state_of_axis(axis).is_partial()) axes.push_back(axis);
  }
  return axes;
}

/// The reduction of one value for each place along the partial axes, given in
/// row-major order. The ops commute, so sums and averages may be done at once.
double ReducePartial(const Layout& layout, const std::vector<double>& values) {
  const std::vector<int> axes = PartialAxes(layout);
  if (axes.empty()) return values.at(0);
  int64_t averaged = 1;
  ReduceOp op = ReduceOp::kSum;
  for (int axis : axes) {
    const ReduceOp of_axis = layout.state_of_axis(axis).op;
    if (of_axis == ReduceOp::kAvg) {
      averaged *= layout.mesh().size(axis);
    } else {
      op = of_axis;
    }
  }
  return ReduceValues(op, values) / static_cast<double>(averaged);
}

/// Plans, runs the plan on random values and compares with the dense tensor.
/// Returns false (with the failure recorded) at the first difference.
bool CheckAgainstDense(const Layout& from, const Layout& to, const Shape& shape,
                       std::mt19937& random) {
  const MeshLayout& mesh = from.mesh();
  const int64_t numel = NumElements(shape);
  const std::vector<int> partial = PartialAxes(from);
  // Small integers: sums and products are exact.
  std::uniform_int_distribution<int> value(1, 3);
  std::vector<Values> summands(mesh.GroupSize(partial), Values(numel));
  for (Values& summand : summands) {
    for (double& x : summand) x = value(random);
  }
  Values global(numel);
  for (int64_t e = 0; e < numel; ++e) {
    std::vector<double> values;
    for (const Values& summand : summands) values.push_back(summand[e]);
    global[e] = ReducePartial(from, values);
  }

  const RedistributePlan plan = Plan(from, to, shape);
  const std::vector<Values> results = RunPlan(
      plan, shape, kElementSize,
      CutAll(from, shape, [&](const MeshCoordinate& at) -> const Values& {
        return summands[mesh.GroupIndex(partial, at)];
      }));

  const std::vector<int> pending = PartialAxes(to);
  for (int i = 0; i < mesh.size(); ++i) {
    const MeshCoordinate at = mesh.CoordinateAt(i);
    const Values expected = Cut(global, shape, to.LocalBox(shape, at));
    Values actual;
    for (size_t e = 0; e < expected.size(); ++e) {
      std::vector<double> values;
      for (int rank : mesh.GroupRanks(pending, at)) {
        values.push_back(results[rank].at(e));
      }
      actual.push_back(ReducePartial(to, values));
    }
    // Only averages over 3 ranks and their sums round.
    for (size_t e = 0; e < expected.size(); ++e) {
      if (results[i].size() != expected.size() ||
          std::abs(actual[e] - expected[e]) > 1e-12 * std::abs(expected[e])) {
        ADD_FAILURE() << "rank " << i << " element " << e << ": " << actual[e]
                      << " instead of " << expected[e] << ", shape "
                      << ToString(ShapeView(shape)) << " on " << mesh.ToString()
                      << "\n"
                      << plan.ToString();
        return false;
      }
    }
  }
  return true;
}

/// Every layout of tensors of `ndim` dims on `mesh` with unit 1 and the given
/// reductions.
std::vector<Layout> AllLayouts(const MeshLayout& mesh, int ndim,
                               const std::vector<ReduceOp>& ops) {
  std::vector<Layout> layouts = {Layout::Replicated(mesh, ndim)};
  for (int axis = 0; axis < mesh.ndim(); ++axis) {
    std::vector<Layout> next;
    for (const Layout& layout : layouts) {
      next.push_back(layout);
      for (int dim = 0; dim < ndim; ++dim) {
        const int others = static_cast<int>(layout.axes_of_dim(dim).size());
        for (int position = 0; position <= others; ++position) {
          next.push_back(layout.WithShard(axis, dim, position));
        }
      }
      for (ReduceOp op : ops) {
        bool commutes = true;
        for (const AxisState& state : layout.axis_states()) {
          commutes &= !state.is_partial() || Commute(state.op, op);
        }
        if (commutes) next.push_back(layout.WithPartial(axis, op));
      }
    }
    layouts = std::move(next);
  }
  return layouts;
}

void CheckAllPairs(const MeshLayout& mesh, int ndim,
                   const std::vector<ReduceOp>& ops,
                   const std::vector<Shape>& shapes) {
  std::mt19937 random(7);
  const std::vector<Layout> layouts = AllLayouts(mesh, ndim, ops);
  int64_t count = 0;
  for (const Layout& from : layouts) {
    for (const Layout& to : layouts) {
      for (const Shape& shape : shapes) {
        ASSERT_TRUE(CheckAgainstDense(from, to, shape, random));
        ++count;
      }
    }
  }
  std::cout << count << " redistributions on " << mesh.ToString() << "\n";
}

const std::vector<ReduceOp> kAllOps = {ReduceOp::kSum, ReduceOp::kAvg,
                                       ReduceOp::kProduct, ReduceOp::kMin,
                                       ReduceOp::kMax};
const std::vector<ReduceOp> kSomeOps = {ReduceOp::kSum, ReduceOp::kAvg,
                                        ReduceOp::kMax};

TEST(RedistributePlanTest, AllPairsOnOneAxis) {
  for (int size : {1, 2, 3, 4}) {
    CheckAllPairs(
        Mesh({size}), 2, kAllOps,
        {{5, 7}, {4, 6}, {2, 1}, {1, 1}, {3, 2}, {0, 3}, {1, 9}, {8, 3}});
  }
}

TEST(RedistributePlanTest, AllPairsOfVectorsOnTwoAxes) {
  for (const std::vector<int>& sizes :
       {std::vector<int>{2, 2}, {2, 3}, {3, 2}, {1, 2}, {2, 1}}) {
    CheckAllPairs(Mesh(sizes), 1, kSomeOps,
                  {{12}, {7}, {1}, {3}, {0}, {5}, {9}});
  }
}

TEST(RedistributePlanTest, AllPairsOfMatricesOnTwoAxes) {
  CheckAllPairs(Mesh({2, 2}), 2, kSomeOps, {{5, 7}, {4, 4}, {1, 3}});
  CheckAllPairs(Mesh({2, 3}), 2, {ReduceOp::kSum}, {{5, 7}, {6, 12}, {2, 1}});
}

TEST(RedistributePlanTest, ScalarsAreOneElement) {
  CheckAllPairs(Mesh({2, 3}), 0, kAllOps, {{}});
}

/// A layout in which each axis does something at random, with random units that
/// a random number of axes keep to.
Layout RandomLayout(const MeshLayout& mesh, int ndim, std::mt19937& random) {
  const auto pick = [&random](int n) {
    return std::uniform_int_distribution<int>(0, n - 1)(random);
  };
  std::vector<DimSharding> dims(ndim);
  Layout::Partials partials(mesh.ndim());
  const bool linear = pick(2) == 0;
  const ReduceOp other = kAllOps[2 + pick(3)];
  for (int axis = 0; axis < mesh.ndim(); ++axis) {
    const int choice = pick(ndim + 2);
    if (choice < ndim) {
      auto& axes = dims[choice].axes;
      axes.insert(axes.begin() + pick(static_cast<int>(axes.size()) + 1), axis);
      if (pick(2) == 0) dims[choice].unit = 1 + pick(3);
    } else if (choice == ndim) {
      partials[axis] = linear ? kAllOps[pick(2)] : other;
    }
  }
  for (DimSharding& sharding : dims) {
    sharding.fine_axes = pick(static_cast<int>(sharding.axes.size()) + 1);
  }
  return Layout(mesh, std::move(dims), std::move(partials));
}

TEST(RedistributePlanTest, RandomPairs) {
  const unsigned seed = 20240607;
  std::cout << "seed " << seed << "\n";
  std::mt19937 random(seed);
  const std::vector<std::vector<int>> meshes = {
      {2, 2, 2}, {3, 2, 2}, {2, 3}, {4, 2}, {2, 1, 3}, {3, 3, 2}};
  for (int i = 0; i < 3000; ++i) {
    const MeshLayout mesh = Mesh(meshes[random() % meshes.size()]);
    const int ndim = 1 + static_cast<int>(random() % 3);
    Shape shape;
    for (int d = 0; d < ndim; ++d) {
      shape.push_back(static_cast<int64_t>(random() % (ndim == 3 ? 6 : 11)));
    }
    const Layout from = RandomLayout(mesh, ndim, random);
    const Layout to = RandomLayout(mesh, ndim, random);
    ASSERT_TRUE(CheckAgainstDense(from, to, shape, random)) << "case " << i;
  }
}

TEST(RedistributePlanTest, ShardsMoveInOneStepThatFetchesNothingTwice) {
  const MeshLayout mesh = Mesh({2, 3});
  const std::vector<Layout> layouts = AllLayouts(mesh, 2, {});
  for (const Shape& shape : {Shape{12, 6}, Shape{5, 7}, Shape{1, 2}}) {
    for (const Layout& from : layouts) {
      for (const Layout& to : layouts) {
        const RedistributePlan plan = Plan(from, to, shape);
        int64_t missing = 0;
        for (int i = 0; i < mesh.size(); ++i) {
          const MeshCoordinate at = mesh.CoordinateAt(i);
          const Box wanted = to.LocalBox(shape, at);
          missing = std::max(
              missing, wanted.numel() -
                           Intersect(wanted, from.LocalBox(shape, at)).numel());
        }
        EXPECT_EQ(plan.steps.size(), from == to ? 0u : 1u) << plan.ToString();
        EXPECT_EQ(plan.cost.bytes, missing * kElementSize) << plan.ToString();
        EXPECT_EQ(plan.cost.launches, missing > 0 ? 1 : 0) << plan.ToString();
      }
    }
  }
}

struct Golden {
  const char* from;
  const char* to;
  const char* plan;
};

TEST(RedistributePlanTest, GoldensOnTwoByTwo) {
  const MeshLayout mesh = Mesh({2, 2});
  const std::vector<Golden> goldens = {
      {"[S(0),R]", "[S(0),R]", "0 collectives, 0 bytes\n"},
      {"[S(0),S(0)]", "[R,R]",
       "1 collective, 192 bytes\n"
       "  all_gather(dim 0, axes=[dp,tp]) -> [R,R]\n"},
      {"[S(0),S(1)]", "[R,R]",
       "1 collective, 192 bytes\n"
       "  all_gather(dim 0, dim 1, axes=[dp,tp]) -> [R,R]\n"},
      {"[S(0),S(1)]", "[S(0),R]",
       "1 collective, 64 bytes\n"
       "  all_gather(dim 1, axes=[tp]) -> [S(0),R]\n"},
      {"[S(0),R]", "[S(1),R]",
       "1 collective, 64 bytes\n"
       "  all_to_all(dim 0 -> dim 1, axes=[dp]) -> [S(1),R]\n"},
      {"[S(0),R]", "[R,S(0)]",
       "1 collective, 128 bytes\n"
       "  all_gather(dim 0, axes=[dp]) -> [R,S(0)]\n"},
      {"[R,R]", "[S(1),S(0)]",
       "0 collectives, 0 bytes\n"
       "  local(dim 0, dim 1) -> [S(1),S(0)]\n"},
      // Half of the rows stay where they are.
      {"[_S(0,2),S(0)]", "[S(0),S(0)]",
       "1 collective, 64 bytes\n"
       "  all_to_all(dim 0, axes=[dp,tp]) -> [S(0),S(0)]\n"},
      {"[_S(0,2),S(0)]", "[R,S(0)]",
       "1 collective, 64 bytes\n"
       "  all_gather(dim 0, axes=[dp]) -> [R,S(0)]\n"},
      {"[P(sum),R]", "[R,R]",
       "1 collective, 256 bytes\n"
       "  all_reduce(sum, axes=[dp]) -> [R,R]\n"},
      {"[P(sum),P(sum)]", "[R,R]",
       "1 collective, 384 bytes\n"
       "  all_reduce(sum, axes=[dp,tp]) -> [R,R]\n"},
      {"[P(sum),P(avg)]", "[R,R]",
       "1 collective, 384 bytes\n"
       "  all_reduce(sum/2, axes=[dp,tp]) -> [R,R]\n"},
      {"[P(avg),P(avg)]", "[R,R]",
       "1 collective, 384 bytes\n"
       "  all_reduce(avg, axes=[dp,tp]) -> [R,R]\n"},
      {"[R,P(max)]", "[R,S(1)]",
       "1 collective, 128 bytes\n"
       "  reduce_scatter(max, dim 1, axes=[tp]) -> [R,S(1)]\n"},
      {"[P(sum),P(sum)]", "[S(0),S(0)]",
       "1 collective, 192 bytes\n"
       "  reduce_scatter(sum, dim 0, axes=[dp,tp]) -> [S(0),S(0)]\n"},
      {"[P(sum),P(sum)]", "[S(0),R]",
       "1 collective, 384 bytes\n"
       "  all_reduce(sum, axes=[dp,tp]) -> [R,R]\n"
       "  local(dim 0) -> [S(0),R]\n"},
      {"[P(sum),R]", "[R,S(0)]",
       "1 collective, 128 bytes\n"
       "  local(dim 0) -> [P(sum),S(0)]\n"
       "  all_reduce(sum, axes=[dp]) -> [R,S(0)]\n"},
      {"[P(sum),S(0)]", "[R,R]",
       "2 collectives, 256 bytes\n"
       "  all_reduce(sum, axes=[dp]) -> [R,S(0)]\n"
       "  all_gather(dim 0, axes=[tp]) -> [R,R]\n"},
      // A gradient on its way to its FSDP shard over a tensor-parallel one.
      {"[P(sum),S(0)]", "[_S(0,2),S(0)]",
       "1 collective, 64 bytes\n"
       "  reduce_scatter(sum, dim 0, axes=[dp]) -> [_S(0,2),S(0)]\n"},
      {"[R,R]", "[P(sum),R]",
       "0 collectives, 0 bytes\n"
       "  to_partial(sum, axes=[dp]) -> [P(sum),R]\n"},
      {"[S(0),R]", "[P(sum),S(0)]",
       "0 collectives, 0 bytes\n"
       "  to_partial(sum, axes=[dp]) -> [P(sum),S(0)]\n"},
      {"[S(0),R]", "[P(max),R]",
       "1 collective, 128 bytes\n"
       "  all_gather(dim 0, axes=[dp]) -> [R,R]\n"
       "  to_partial(max, axes=[dp]) -> [P(max),R]\n"},
      {"[P(sum),R]", "[P(max),R]",
       "1 collective, 256 bytes\n"
       "  all_reduce(sum, axes=[dp]) -> [R,R]\n"
       "  to_partial(max, axes=[dp]) -> [P(max),R]\n"},
  };
  for (const Golden& golden : goldens) {
    const RedistributePlan plan =
        Plan(Parse(mesh, 2, golden.from), Parse(mesh, 2, golden.to), {8, 8});
    EXPECT_EQ(plan.ToString(),
              absl::StrCat(golden.from, " -> ", golden.to, ": ", golden.plan));
  }
}

TEST(RedistributePlanTest, LargeTensorsAreReducedInPieces) {
  const MeshLayout mesh = Mesh({2, 2});
  const auto plan = [&mesh](const std::string& from, const std::string& to) {
    return Plan(Parse(mesh, 2, from), Parse(mesh, 2, to), {1024, 1024})
        .ToString();
  };
  EXPECT_EQ(plan("[P(sum),P(sum)]", "[S(0),R]"),
            "[P(sum),P(sum)] -> [S(0),R]: 2 collectives, 4194304 bytes\n"
            "  reduce_scatter(sum, dim 0, axes=[dp]) -> [S(0),P(sum)]\n"
            "  all_reduce(sum, axes=[tp]) -> [S(0),R]\n");
  EXPECT_EQ(plan("[P(sum),S(0)]", "[S(0),R]"),
            "[P(sum),S(0)] -> [S(0),R]: 2 collectives, 3145728 bytes\n"
            "  reduce_scatter(sum, dim 0, axes=[dp]) -> [_S(0,2),S(0)]\n"
            "  all_to_all(dim 0, axes=[dp,tp]) -> [S(0),R]\n");
}

TEST(RedistributePlanTest, SizesThatLeaveRanksEmptyNeedNoCommunication) {
  const MeshLayout mesh = Mesh({3});
  EXPECT_EQ(Plan(Parse(mesh, 2, "[S(0)]"), Parse(mesh, 2, "[S(1)]"), {1, 1})
                .cost.launches,
            0);
  EXPECT_EQ(Plan(Parse(mesh, 2, "[P(sum)]"), Parse(mesh, 2, "[R]"), {0, 5})
                .cost.launches,
            0);
}

TEST(RedistributePlanTest, TheModelDecidesBetweenLaunchesAndBytes) {
  const MeshLayout mesh = Mesh({2, 2});
  const Layout from = Parse(mesh, 2, "[P(sum),P(sum)]");
  const Layout to = Parse(mesh, 2, "[S(0),R]");
  const auto launches = [&](int64_t bytes_per_launch) {
    return PlanRedistribute(from, to, {64, 64}, kElementSize,
                            {.bytes_per_launch = bytes_per_launch})
        ->cost.launches;
  };
  EXPECT_EQ(launches(0), 2);
  EXPECT_EQ(launches(1 << 30), 1);
}

TEST(RedistributePlanTest, RefusesWhatDoesNotFit) {
  const Layout layout = Layout::Replicated(Mesh({2}), 2);
  const auto message = [&layout](const Layout& to, const Shape& shape) {
    const absl::Status status =
        PlanRedistribute(layout, to, shape, kElementSize).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_EQ(message(Layout::Replicated(Mesh({3}), 2), {4, 4}),
            "redistribute: the layouts have different meshes: [R] of 2 dims on "
            "mesh(dp=2) to [R] of 2 dims on mesh(dp=3)");
  EXPECT_THAT(message(Layout::Replicated(Mesh({2}), 3), {4, 4}),
              HasSubstr("of shape [4, 4] from [R] of 2 dims"));
  EXPECT_THAT(message(layout, {4}), HasSubstr("of shape [4]"));
  EXPECT_THAT(message(layout, {4, -1}), HasSubstr("negative size in [4, -1]"));
}

}  // namespace
}  // namespace crosshatch
