// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/redistribution/plan.h"

#include <algorithm>
#include <iostream>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "crosshatch/dtensor/layout/layout_testutil.h"
#include "crosshatch/dtensor/redistribution/interpreter.h"
#include "crosshatch/dtensor/redistribution/moves.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch {

namespace {

using ::testing::HasSubstr;

constexpr int64_t kElementSize = 4;

RedistributePlan Plan(const Layout& from, const Layout& to, ShapeView shape) {
  return PlanRedistribute(from, to, shape, kElementSize).value();
}

/// Plans, runs the plan on random values and compares with the dense tensor.
void CheckAgainstDense(const Layout& from, const Layout& to, ShapeView shape,
                       std::mt19937& random) {
  const RedistributePlan plan = Plan(from, to, shape);
  const DenseTensor dense(from, shape, random);
  const std::string mismatch =
      dense.Mismatch(to, RunPlan(plan, shape, kElementSize, dense.Shards()));
  ASSERT_EQ(mismatch, "") << plan.ToString() << "shape " << ToString(shape)
                          << " on " << from.mesh().ToString();
  ASSERT_GE(plan.cost.bytes, plan.least_bytes) << plan.ToString();
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
        ASSERT_NO_FATAL_FAILURE(CheckAgainstDense(from, to, shape, random));
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
        OracleMesh({size}), 2, kAllOps,
        {{5, 7}, {4, 6}, {2, 1}, {1, 1}, {3, 2}, {0, 3}, {1, 9}, {8, 3}});
  }
}

TEST(RedistributePlanTest, AllPairsOfVectorsOnTwoAxes) {
  for (const std::vector<int>& sizes :
       {std::vector<int>{2, 2}, {2, 3}, {3, 2}, {1, 2}, {2, 1}}) {
    CheckAllPairs(OracleMesh(sizes), 1, kSomeOps,
                  {{12}, {7}, {1}, {3}, {0}, {5}, {9}});
  }
}

TEST(RedistributePlanTest, AllPairsOfMatricesOnTwoAxes) {
  CheckAllPairs(OracleMesh({2, 2}), 2, kSomeOps, {{5, 7}, {4, 4}, {1, 3}});
  CheckAllPairs(OracleMesh({2, 3}), 2, {ReduceOp::kSum},
                {{5, 7}, {6, 12}, {2, 1}});
}

TEST(RedistributePlanTest, ScalarsAreOneElement) {
  CheckAllPairs(OracleMesh({2, 3}), 0, kAllOps, {{}});
}

TEST(RedistributePlanTest, ShardsMoveInOneStepThatFetchesNothingTwice) {
  const MeshLayout mesh = OracleMesh({2, 3});
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

// Data that came over the light axis need not come over the heavy one.
TEST(RedistributePlanTest, TakesFewerBytesOverAHeavyAxis) {
  const MeshLayout mesh = OracleMesh({2, 2});
  const auto plan = [&](const RedistributeCostModel& model) {
    return PlanRedistribute(LayoutOf(mesh, 2, "[S(0),S(0)]"),
                            LayoutOf(mesh, 2, "[R,R]"), {1024, 1024},
                            kElementSize, model);
  };
  EXPECT_EQ(plan({})->ToString(),
            "[S(0),S(0)] -> [R,R]: 1 collective, 3145728 bytes (lower bound "
            "3145728)\n"
            "  all_gather(dim 0, axes=[dp,tp]) -> [R,R]\n");
  EXPECT_EQ(plan({.weight_of_byte_by_axis = {20, 1}})->ToString(),
            "[S(0),S(0)] -> [R,R]: 3 collectives, 3670016 bytes (lower bound "
            "3145728)\n"
            "  all_to_all(dim 0 -> dim 0, dim 1, axes=[tp]) -> [S(0),S(1)]\n"
            "  all_gather(dim 0, axes=[dp]) -> [R,S(1)]\n"
            "  all_gather(dim 1, axes=[tp]) -> [R,R]\n");
  EXPECT_EQ(plan({.weight_of_byte_by_axis = {20}}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(plan({.weight_of_byte_by_axis = {20, -1}}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

struct Golden {
  const char* from;
  const char* to;
  const char* plan;
};

TEST(RedistributePlanTest, GoldensOnTwoByTwo) {
  const MeshLayout mesh = OracleMesh({2, 2});
  const std::vector<Golden> goldens = {
      {"[S(0),R]", "[S(0),R]", "0 collectives, 0 bytes (lower bound 0)\n"},
      {"[S(0),S(0)]", "[R,R]",
       "1 collective, 192 bytes (lower bound 192)\n"
       "  all_gather(dim 0, axes=[dp,tp]) -> [R,R]\n"},
      {"[S(0),S(1)]", "[R,R]",
       "1 collective, 192 bytes (lower bound 192)\n"
       "  all_gather(dim 0, dim 1, axes=[dp,tp]) -> [R,R]\n"},
      {"[S(0),S(1)]", "[S(0),R]",
       "1 collective, 64 bytes (lower bound 64)\n"
       "  all_gather(dim 1, axes=[tp]) -> [S(0),R]\n"},
      {"[S(0),R]", "[S(1),R]",
       "1 collective, 64 bytes (lower bound 64)\n"
       "  all_to_all(dim 0 -> dim 1, axes=[dp]) -> [S(1),R]\n"},
      {"[S(0),R]", "[R,S(0)]",
       "1 collective, 128 bytes (lower bound 128)\n"
       "  all_gather(dim 0, axes=[dp]) -> [R,S(0)]\n"},
      {"[R,R]", "[S(1),S(0)]",
       "0 collectives, 0 bytes (lower bound 0)\n"
       "  local(dim 0, dim 1) -> [S(1),S(0)]\n"},
      // Half of the rows stay where they are.
      {"[_S(0,2),S(0)]", "[S(0),S(0)]",
       "1 collective, 64 bytes (lower bound 64)\n"
       "  all_to_all(dim 0, axes=[dp,tp]) -> [S(0),S(0)]\n"},
      {"[_S(0,2),S(0)]", "[R,S(0)]",
       "1 collective, 64 bytes (lower bound 64)\n"
       "  all_gather(dim 0, axes=[dp]) -> [R,S(0)]\n"},
      {"[P(sum),R]", "[R,R]",
       "1 collective, 256 bytes (lower bound 256)\n"
       "  all_reduce(sum, axes=[dp]) -> [R,R]\n"},
      {"[P(sum),P(sum)]", "[R,R]",
       "1 collective, 384 bytes (lower bound 384)\n"
       "  all_reduce(sum, axes=[dp,tp]) -> [R,R]\n"},
      {"[P(sum),P(avg)]", "[R,R]",
       "1 collective, 384 bytes (lower bound 384)\n"
       "  all_reduce(sum/2, axes=[dp,tp]) -> [R,R]\n"},
      {"[P(avg),P(avg)]", "[R,R]",
       "1 collective, 384 bytes (lower bound 384)\n"
       "  all_reduce(avg, axes=[dp,tp]) -> [R,R]\n"},
      {"[R,P(max)]", "[R,S(1)]",
       "1 collective, 128 bytes (lower bound 128)\n"
       "  reduce_scatter(max, dim 1, axes=[tp]) -> [R,S(1)]\n"},
      {"[P(sum),P(sum)]", "[S(0),S(0)]",
       "1 collective, 192 bytes (lower bound 192)\n"
       "  reduce_scatter(sum, dim 0, axes=[dp,tp]) -> [S(0),S(0)]\n"},
      {"[P(sum),P(sum)]", "[S(0),R]",
       "1 collective, 384 bytes (lower bound 256)\n"
       "  all_reduce(sum, axes=[dp,tp]) -> [R,R]\n"
       "  local(dim 0) -> [S(0),R]\n"},
      {"[P(sum),R]", "[R,S(0)]",
       "1 collective, 128 bytes (lower bound 128)\n"
       "  local(dim 0) -> [P(sum),S(0)]\n"
       "  all_reduce(sum, axes=[dp]) -> [R,S(0)]\n"},
      {"[P(sum),S(0)]", "[R,R]",
       "2 collectives, 256 bytes (lower bound 256)\n"
       "  all_reduce(sum, axes=[dp]) -> [R,S(0)]\n"
       "  all_gather(dim 0, axes=[tp]) -> [R,R]\n"},
      // A gradient on its way to its FSDP shard over a tensor-parallel one.
      {"[P(sum),S(0)]", "[_S(0,2),S(0)]",
       "1 collective, 64 bytes (lower bound 64)\n"
       "  reduce_scatter(sum, dim 0, axes=[dp]) -> [_S(0,2),S(0)]\n"},
      {"[R,R]", "[P(sum),R]",
       "0 collectives, 0 bytes (lower bound 0)\n"
       "  to_partial(sum, axes=[dp]) -> [P(sum),R]\n"},
      {"[S(0),R]", "[P(sum),S(0)]",
       "0 collectives, 0 bytes (lower bound 0)\n"
       "  to_partial(sum, axes=[dp]) -> [P(sum),S(0)]\n"},
      {"[S(0),R]", "[P(max),R]",
       "1 collective, 128 bytes (lower bound 0)\n"
       "  all_gather(dim 0, axes=[dp]) -> [R,R]\n"
       "  to_partial(max, axes=[dp]) -> [P(max),R]\n"},
      {"[P(sum),R]", "[P(max),R]",
       "1 collective, 256 bytes (lower bound 0)\n"
       "  all_reduce(sum, axes=[dp]) -> [R,R]\n"
       "  to_partial(max, axes=[dp]) -> [P(max),R]\n"},
  };
  for (const Golden& golden : goldens) {
    const RedistributePlan plan = Plan(LayoutOf(mesh, 2, golden.from),
                                       LayoutOf(mesh, 2, golden.to), {8, 8});
    EXPECT_EQ(plan.ToString(),
              absl::StrCat(golden.from, " -> ", golden.to, ": ", golden.plan));
  }
}

TEST(RedistributePlanTest, LargeTensorsAreReducedInPieces) {
  const MeshLayout mesh = OracleMesh({2, 2});
  const auto plan = [&mesh](const std::string& from, const std::string& to) {
    return Plan(LayoutOf(mesh, 2, from), LayoutOf(mesh, 2, to), {1024, 1024})
        .ToString();
  };
  EXPECT_EQ(plan("[P(sum),P(sum)]", "[S(0),R]"),
            "[P(sum),P(sum)] -> [S(0),R]: 2 collectives, 4194304 bytes "
            "(lower bound 4194304)\n"
            "  reduce_scatter(sum, dim 0, axes=[dp,tp]) -> [S(0),S(0)]\n"
            "  all_gather(dim 0, axes=[tp]) -> [S(0),R]\n");
  EXPECT_EQ(plan("[P(sum),S(0)]", "[S(0),R]"),
            "[P(sum),S(0)] -> [S(0),R]: 2 collectives, 3145728 bytes "
            "(lower bound 2097152)\n"
            "  reduce_scatter(sum, dim 0, axes=[dp]) -> [_S(0,2),S(0)]\n"
            "  all_to_all(dim 0, axes=[dp,tp]) -> [S(0),R]\n");
}

TEST(RedistributePlanTest, SizesThatLeaveRanksEmptyNeedNoCommunication) {
  const MeshLayout mesh = OracleMesh({3});
  EXPECT_EQ(
      Plan(LayoutOf(mesh, 2, "[S(0)]"), LayoutOf(mesh, 2, "[S(1)]"), {1, 1})
          .cost.launches,
      0);
  EXPECT_EQ(
      Plan(LayoutOf(mesh, 2, "[P(sum)]"), LayoutOf(mesh, 2, "[R]"), {0, 5})
          .cost.launches,
      0);
}

TEST(RedistributePlanTest, RefusesWhatDoesNotFit) {
  const Layout layout = Layout::Replicated(OracleMesh({2}), 2);
  const auto message = [&layout](const Layout& to, const Shape& shape) {
    const absl::Status status =
        PlanRedistribute(layout, to, shape, kElementSize).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_EQ(message(Layout::Replicated(OracleMesh({3}), 2), {4, 4}),
            "redistribute: the layouts have different meshes: [R] of 2 dims on "
            "mesh(dp=2) to [R] of 2 dims on mesh(dp=3)");
  EXPECT_THAT(message(Layout::Replicated(OracleMesh({2}), 3), {4, 4}),
              HasSubstr("of shape [4, 4] from [R] of 2 dims"));
  EXPECT_THAT(message(layout, {4}), HasSubstr("of shape [4]"));
  EXPECT_THAT(message(layout, {4, -1}), HasSubstr("negative size in [4, -1]"));
}

// A value is one summand and zeros, not n times the n-th part of itself.
TEST(RedistributeLawTest, SummandsAreExact) {
  const MeshLayout mesh = OracleMesh({3});
  const Shape shape = {4};
  const Values values = {0.1, 1.0 / 3, 1e-300, 7};
  const auto shards_of = [&](const std::string& from, const std::string& to) {
    const Layout layout = LayoutOf(mesh, 1, from);
    return RunPlan(
        Plan(layout, LayoutOf(mesh, 1, to), shape), shape, kElementSize,
        CutAll(layout, shape,
               [&](const MeshCoordinate&) -> const Values& { return values; }));
  };
  const Values zeros = {0, 0, 0, 0};
  EXPECT_EQ(shards_of("[R]", "[P(sum)]"),
            (std::vector<Values>{values, zeros, zeros}));
  EXPECT_EQ(shards_of("[R]", "[P(product)]"),
            (std::vector<Values>{values, {1, 1, 1, 1}, {1, 1, 1, 1}}));
  for (const char* op : {"[P(avg)]", "[P(min)]", "[P(max)]"}) {
    EXPECT_EQ(shards_of("[R]", op),
              (std::vector<Values>{values, values, values}));
  }
  EXPECT_EQ(
      shards_of("[S(0)]", "[P(sum)]"),
      (std::vector<Values>{{0.1, 1.0 / 3, 0, 0}, {0, 0, 1e-300, 7}, zeros}));
}

}  // namespace

}  // namespace crosshatch
