// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/redistribution/cross_mesh_plan.h"

#include <algorithm>
#include <iostream>
#include <map>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "crosshatch/dtensor/layout/layout_testutil.h"
#include "crosshatch/dtensor/redistribution/interpreter.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kElementSize = 4;

CrossMeshPlan Plan(const Layout& from, const Layout& to, ShapeView shape) {
  return PlanCrossMesh(from, to, shape, kElementSize).value();
}

std::string Moves(const CrossMeshPlan& plan, ShapeView shape) {
  return absl::StrJoin(CrossMeshMoves(plan, shape), "\n",
                       [](std::string* out, const CrossMeshMove& move) {
                         out->append(move.ToString());
                       });
}

/// No replica sends more than another by more than the largest piece.
void CheckBalance(const CrossMeshPlan& plan, ShapeView shape) {
  std::map<int, int64_t> sent;
  int64_t largest = 0;
  for (const CrossMeshMove& move : CrossMeshMoves(plan, shape)) {
    if (move.from == move.to) continue;
    sent[move.from] += move.box.numel();
    largest = std::max(largest, move.box.numel());
  }
  const MeshLayout& mesh = plan.source().mesh();
  for (int i = 0; i < mesh.size(); ++i) {
    for (int j = 0; j < mesh.size(); ++j) {
      if (plan.source().LocalBox(shape, mesh.CoordinateAt(i)) !=
          plan.source().LocalBox(shape, mesh.CoordinateAt(j))) {
        continue;
      }
      if (plan.source().LocalBox(shape, mesh.CoordinateAt(i)).empty()) continue;
      ASSERT_LE(sent[mesh.ranks()[i]] - sent[mesh.ranks()[j]], largest)
          << plan.ToString() << Moves(plan, shape);
    }
  }
}

void CheckAgainstDense(const Layout& from, const Layout& to, ShapeView shape,
                       std::mt19937& random) {
  const CrossMeshPlan plan = Plan(from, to, shape);
  const DenseTensor dense(from, shape, random);
  ASSERT_EQ(dense.Mismatch(to, RunCrossMeshPlan(plan, shape, kElementSize,
                                                dense.Shards())),
            "")
      << plan.ToString() << "shape " << ToString(shape) << ", "
      << from.ToStringByDim() << " to " << to.ToStringByDim();
  ASSERT_GE(plan.cost.bytes, plan.least_bytes) << plan.ToString();
  if (!from.is_partial() && !to.is_partial()) {
    ASSERT_EQ(plan.cost.bytes, plan.least_bytes) << plan.ToString();
  }
  CheckBalance(plan, shape);
}

const std::vector<ReduceOp> kOps = {ReduceOp::kSum, ReduceOp::kMax};

TEST(CrossMeshPlanTest, AllPairsOfSmallMeshes) {
  const std::vector<std::pair<MeshLayout, MeshLayout>> meshes = {
      // The same ranks: renamed, in another order, in another shape.
      {OracleMesh({4}), OracleMesh({4}, {3, 1, 0, 2})},
      {OracleMesh({2, 2}), OracleMesh({4})},
      {OracleMesh({2, 2}), OracleMesh({2, 2}, {0, 2, 1, 3})},
      // Disjoint; overlapping; one within the other; a single rank.
      {OracleMesh({2}), OracleMesh({3}, {2, 3, 4})},
      {OracleMesh({3}), OracleMesh({2, 2}, {1, 2, 3, 4})},
      {OracleMesh({4}), OracleMesh({2}, {2, 1})},
      {OracleMesh({1}, {5}), OracleMesh({2, 2}, {4, 5, 7, 6})},
      {OracleMesh({2, 3}), OracleMesh({1}, {9})},
      // A pending reduction over one rank does nothing.
      {OracleMesh({1, 2}), OracleMesh({3}, {0, 1, 5})},
  };
  std::mt19937 random(3);
  int64_t count = 0;
  for (const auto& [before, after] : meshes) {
    for (const Shape& shape : {Shape{}, Shape{5}, Shape{1}, Shape{4, 3}}) {
      const int ndim = static_cast<int>(shape.size());
      for (const Layout& from : AllLayouts(before, ndim, kOps)) {
        for (const Layout& to : AllLayouts(after, ndim, kOps)) {
          ASSERT_NO_FATAL_FAILURE(CheckAgainstDense(from, to, shape, random));
          ++count;
        }
      }
    }
  }
  std::cout << count << " redistributions\n";
}

TEST(CrossMeshPlanTest, ReadsWellAndSendsEachElementOnce) {
  const MeshLayout two = OracleMesh({2});
  const MeshLayout three = OracleMesh({3}, {1, 2, 3});
  const Shape shape = {6, 2};
  // Rank 1 has rows 3:6 and needs 0:2; ranks 2 and 3 are new.
  const CrossMeshPlan rows =
      Plan(LayoutOf(two, 2, "[S(0)]"), LayoutOf(three, 2, "[S(0)]"), shape);
  EXPECT_EQ(rows.ToString(),
            "[S(0)] on mesh(dp=2) -> [S(0)] on mesh(dp=3, ranks=[1,2,3]): "
            "1 collective, 16 bytes (lower bound 16)\n"
            "  exchange(ranks 0, 1, 2, 3) -> [S(0)]\n");
  EXPECT_EQ(Moves(rows, shape),
            "0 -> 1 [0:2, 0:2]\n"
            "0 -> 2 [2:3, 0:2]\n"
            "1 -> 2 [3:4, 0:2]\n"
            "1 -> 3 [4:6, 0:2]");
  // Rank 1 keeps what it has; the replicas take turns.
  const CrossMeshPlan whole =
      Plan(LayoutOf(two, 2, "[R]"), LayoutOf(three, 2, "[R]"), shape);
  EXPECT_EQ(Moves(whole, shape),
            "1 -> 1 [0:6, 0:2]\n"
            "0 -> 2 [0:6, 0:2]\n"
            "1 -> 3 [0:6, 0:2]");
  // Sums are scattered, so that each rank sends half of them.
  const CrossMeshPlan sums =
      Plan(LayoutOf(two, 2, "[P(sum)]"), LayoutOf(three, 2, "[R]"), {64, 2});
  EXPECT_EQ(sums.ToString(),
            "[P(sum)] on mesh(dp=2) -> [R] on mesh(dp=3, ranks=[1,2,3]): "
            "2 collectives, 768 bytes (lower bound 512)\n"
            "  reduce_scatter(sum, dim 0, axes=[dp]) -> [S(0)]\n"
            "  exchange(ranks 0, 1, 2, 3) -> [R]\n");
  // Each summand of a sum needs only a part.
  const CrossMeshPlan summands =
      Plan(LayoutOf(two, 2, "[S(0)]"), LayoutOf(three, 2, "[P(sum)]"), shape);
  EXPECT_EQ(summands.ToString(),
            "[S(0)] on mesh(dp=2) -> [P(sum)] on mesh(dp=3, ranks=[1,2,3]): "
            "1 collective, 16 bytes (lower bound 8)\n"
            "  exchange(ranks 0, 1, 2, 3) -> [S(0)]\n"
            "  to_partial(sum, axes=[dp]) -> [P(sum)]\n");
}

TEST(CrossMeshPlanTest, ANewShapeOfTheSameRanksMovesOnlyChangedElements) {
  // Rank r of four holds rows 2r:2r+2 either way.
  const MeshLayout flat = OracleMesh({4});
  const MeshLayout square = OracleMesh({2, 2});
  const CrossMeshPlan plan = Plan(LayoutOf(flat, 1, "[S(0)]"),
                                  LayoutOf(square, 1, "[S(0),S(0)]"), {8});
  EXPECT_EQ(plan.ToString(),
            "[S(0)] on mesh(dp=4) -> [S(0),S(0)] on mesh(dp=2, tp=2): "
            "0 collectives, 0 bytes (lower bound 0)\n"
            "  local() -> [S(0),S(0)]\n");
  // In the reverse order of axes, ranks 1 and 2 swap.
  const CrossMeshPlan swap = Plan(LayoutOf(flat, 1, "[S(0)]"),
                                  LayoutOf(square, 1, "[_S(0,2),S(0)]"), {8});
  EXPECT_EQ(Moves(swap, {8}),
            "0 -> 0 [0:2]\n1 -> 2 [2:4]\n2 -> 1 [4:6]\n3 -> 3 [6:8]");
}

TEST(CrossMeshPlanTest, LargeMeshesAreBalanced) {
  // 32 replicas of 8 shards go to 24 ranks, none of which has anything yet.
  std::vector<int> others;
  for (int i = 0; i < 24; ++i) others.push_back(256 + i);
  const Layout from = LayoutOf(OracleMesh({32, 8}), 2, "[R,S(0)]");
  const Layout to = LayoutOf(OracleMesh({24}, others), 2, "[S(1)]");
  const Shape shape = {64, 48};
  const CrossMeshPlan plan = Plan(from, to, shape);
  CheckBalance(plan, shape);
  EXPECT_EQ(plan.cost.bytes, 64 * 2 * kElementSize);
}

TEST(CrossMeshPlanTest, RefusesWhatDoesNotFit) {
  const Layout a = Layout::Replicated(OracleMesh({2}), 2);
  const Layout b = Layout::Replicated(OracleMesh({3}), 1);
  const auto message = [](const Layout& from, const Layout& to,
                          const Shape& shape) {
    const absl::Status status =
        PlanCrossMesh(from, to, shape, kElementSize).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_EQ(message(a, b, {4, 4}),
            "redistribute across meshes: a tensor of shape [4, 4] from [R] of "
            "2 dims on mesh(dp=2) to [R] of 1 dims on mesh(dp=3)");
  EXPECT_THAT(message(b, b, {4, 4}), HasSubstr("of shape [4, 4]"));
  EXPECT_THAT(message(b, b, {-1}), HasSubstr("of shape [-1]"));
}

}  // namespace
}  // namespace crosshatch
