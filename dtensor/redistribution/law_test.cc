// SPDX-License-Identifier: Apache-2.0

/// \file
/// Laws of redistribution plans: one merged collective replaces several, only
/// elements whose rank changes move, and summands are exact.

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "crosshatch/dtensor/layout/layout_testutil.h"
#include "crosshatch/dtensor/redistribution/interpreter.h"
#include "crosshatch/dtensor/redistribution/moves.h"
#include "crosshatch/dtensor/redistribution/oracle.h"
#include "crosshatch/dtensor/redistribution/plan.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

constexpr int64_t kElementSize = 4;

RedistributePlan Plan(const Layout& from, const Layout& to, ShapeView shape) {
  return PlanRedistribute(from, to, shape, kElementSize).value();
}

RedistributePlan Joined(const Layout& from, const Layout& between,
                        const Layout& to, ShapeView shape) {
  RedistributePlan joined = {.from = from, .to = to};
  HeldElements held(from, shape);
  for (const RedistributePlan& leg :
       {Plan(from, between, shape), Plan(between, to, shape)}) {
    for (const RedistributeStep& step : leg.steps) {
      joined.steps.push_back(step);
      joined.cost += StepCost(step, shape, kElementSize);
      held.Run(step, shape);
    }
  }
  joined.peak_elements = held.peak();
  return joined;
}

/// Returns `from` with `axis` as in `to`: one axis at a time.
Layout OneAxisOn(const Layout& from, const Layout& to, int axis) {
  const AxisState& after = to.state_of_axis(axis);
  if (after.is_replicate()) return from.WithReplicate(axis);
  return from.WithShard(axis, after.dim);
}

TEST(RedistributeLawTest, OneMergedCollectiveDoesWhatSeveralDo) {
  const MeshLayout mesh = OracleMesh({2, 3});
  std::mt19937 random(1);
  int merged = 0;
  for (const Shape& shape : {Shape{12, 6}, Shape{5, 7}}) {
    for (const Layout& from : AllLayouts(mesh, 2, {ReduceOp::kSum})) {
      for (const Layout& to : AllLayouts(mesh, 2, {})) {
        const RedistributePlan plan = Plan(from, to, shape);
        const DenseTensor dense(from, shape, random);
        const std::vector<Values> at_once =
            RunPlan(plan, shape, kElementSize, dense.Shards());
        for (int axis : {0, 1}) {
          const RedistributePlan steps =
              Joined(from, OneAxisOn(from, to, axis), to, shape);
          ASSERT_EQ(RunPlan(steps, shape, kElementSize, dense.Shards()),
                    at_once)
              << plan.ToString() << steps.ToString();
          const RedistributeCostModel model;
          ASSERT_LE(model.Weight(plan.cost), model.Weight(steps.cost))
              << plan.ToString() << steps.ToString();
          merged += plan.cost.launches < steps.cost.launches ? 1 : 0;
        }
      }
    }
  }
  EXPECT_GT(merged, 100);
}

TEST(RedistributeLawTest, OnlyWhatChangesItsOwnerMoves) {
  for (const std::vector<int>& sizes : {std::vector<int>{2, 2}, {2, 3}}) {
    const MeshLayout mesh = OracleMesh(sizes);
    for (const Shape& shape : {Shape{12, 2}, Shape{8, 2}, Shape{7, 3}}) {
      // Between the two orders of the axes, in both directions.
      const Layout r = Layout::Replicated(mesh, 2);
      const Layout plain = r.WithDim(0, {.axes = {0, 1}});
      const Layout strided = r.WithDim(0, {.axes = {1, 0}});
      for (const auto& [from, to] :
           {std::pair(strided, plain), {plain, strided}}) {
        const RedistributePlan plan = Plan(from, to, shape);
        ASSERT_EQ(plan.steps.size(), 1u) << plan.ToString();
        int64_t moved = 0;
        int64_t changes_owner = 0;
        for (int i = 0; i < mesh.size(); ++i) {
          const MeshCoordinate at = mesh.CoordinateAt(i);
          const TransferBoxes boxes = StepTransfers(plan.steps[0], shape, at);
          for (size_t peer = 0; peer < boxes.receives.size(); ++peer) {
            if (static_cast<int>(peer) != boxes.self) {
              moved += boxes.receives[peer].numel();
            }
          }
          for (int64_t row = 0; row < shape[0]; ++row) {
            const auto has = [&](const Layout& layout) {
              const Interval rows = layout.DimInterval(0, shape[0], at);
              return rows.begin <= row && row < rows.end;
            };
            if (has(to) && !has(from)) changes_owner += shape[1];
          }
        }
        EXPECT_EQ(moved, changes_owner) << plan.ToString();
        EXPECT_LT(moved, NumElements(shape));
      }
    }
  }
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
