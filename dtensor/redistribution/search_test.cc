// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/redistribution/search.h"

#include <algorithm>
#include <iostream>
#include <random>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/dtensor/layout/layout_testutil.h"
#include "crosshatch/dtensor/redistribution/exhaustive_search.h"
#include "crosshatch/dtensor/redistribution/plan.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

constexpr int64_t kElementSize = ExhaustiveSearch::kElementSize;
constexpr int64_t kNever = ExhaustiveSearch::kNever;

int64_t WeightOf(const RedistributePlan& plan, ShapeView shape,
                 const RedistributeCostModel& model) {
  int64_t weight = 0;
  for (const RedistributeStep& step : plan.steps) {
    weight += model.Weight(step, StepCost(step, shape, kElementSize));
  }
  return weight;
}

struct Case {
  std::vector<int> sizes;
  int ndim;
  std::vector<ReduceOp> ops;
  std::vector<Shape> shapes;
  /// The share of layout pairs that are searched, in thousandths.
  int per_mille = 1000;
};

void ForEachPair(const Case& test, const RedistributeCostModel& model,
                 const std::function<void(const ExhaustiveSearch&, ShapeView,
                                          size_t, size_t)>& check) {
  const MeshLayout mesh = OracleMesh(test.sizes);
  std::mt19937 random(11);
  int64_t count = 0;
  for (const Shape& shape : test.shapes) {
    SCOPED_TRACE(ToString(ShapeView(shape)) + " on " + mesh.ToString());
    const ExhaustiveSearch search(mesh, test.ndim, test.ops, shape, model);
    for (size_t i = 0; i < search.layouts().size(); ++i) {
      for (size_t j = 0; j < search.layouts().size(); ++j) {
        if (static_cast<int>(random() % 1000) >= test.per_mille) continue;
        check(search, shape, i, j);
        if (testing::Test::HasFailure()) return;
        ++count;
      }
    }
  }
  std::cout << count << " redistributions on " << mesh.ToString() << "\n";
}

const std::vector<Shape> kMatrices = {{4, 4}, {5, 3}, {1, 4}, {2, 7},
                                      {8, 6}, {3, 3}, {1, 1}};

std::vector<Case> SmallCases() {
  return {
      {{2}, 2, {ReduceOp::kSum, ReduceOp::kMax}, kMatrices},
      {{3}, 2, {ReduceOp::kSum, ReduceOp::kAvg}, kMatrices},
      {{4}, 1, {ReduceOp::kSum, ReduceOp::kMin}, {{7}, {8}, {3}, {0}}},
      {{1, 2}, 1, {ReduceOp::kSum, ReduceOp::kAvg}, {{7}, {8}, {1}}},
      {{2, 2}, 0, {ReduceOp::kSum, ReduceOp::kMax}, {{}}},
      {{2, 2},
       1,
       {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMax},
       {{7}, {8}, {5}, {3}, {1}}},
      {{2, 2}, 2, {ReduceOp::kSum}, kMatrices},
      {{2, 2}, 2, {ReduceOp::kMax, ReduceOp::kProduct}, {{5, 3}, {4, 4}}},
      {{2, 3}, 1, {ReduceOp::kSum, ReduceOp::kMax}, {{7}, {12}, {5}}},
      {{3, 2}, 2, {ReduceOp::kSum}, {{5, 7}, {6, 12}, {2, 1}}},
  };
}

std::vector<Case> SampledCases() {
  return {
      {{2, 3}, 2, {ReduceOp::kSum, ReduceOp::kAvg}, {{5, 7}, {9, 4}}, 100},
      {{2, 2, 2}, 1, {ReduceOp::kSum}, {{11}, {8}, {3}}, 300},
      {{2, 2, 2}, 2, {ReduceOp::kSum}, {{5, 7}, {8, 4}}, 40},
  };
}

void ExpectLightest(const Case& test, const RedistributeCostModel& model) {
  ForEachPair(
      test, model,
      [&](const ExhaustiveSearch& search, ShapeView shape, size_t i, size_t j) {
        const auto plan =
            PlanRedistribute(search.layouts()[i], search.layouts()[j], shape,
                             kElementSize, model);
        ASSERT_TRUE(plan.ok()) << plan.status();
        ASSERT_EQ(WeightOf(*plan, shape, model), search.Weight(i, j))
            << "a launch weighs " << model.bytes_per_launch << "\n"
            << plan->ToString();
      });
}

TEST(RedistributeSearchTest, FindsWhatAnExhaustiveSearchFinds) {
  std::vector<Case> cases = SmallCases();
  for (Case& test : SampledCases()) cases.push_back(std::move(test));
  for (int64_t launch : {0, 10, 1000}) {
    for (const Case& test : cases) {
      ExpectLightest(test, {.bytes_per_launch = launch});
      if (HasFailure()) return;
    }
  }
}

TEST(RedistributeSearchTest, WeighsLaunchesAndBytesByAxis) {
  struct Weighed {
    Case test;
    RedistributeCostModel model;
  };
  const std::vector<Weighed> cases = {
      {{{2, 2}, 2, {ReduceOp::kSum}, {{4, 4}, {5, 3}, {8, 6}}},
       {.bytes_per_launch_of_axis = {40, 2}}},
      {{{2, 2}, 2, {ReduceOp::kSum}, {{4, 4}, {5, 3}, {8, 6}}},
       {.bytes_per_launch = 10, .weight_of_byte_by_axis = {5, 1}}},
      {{{2, 2}, 2, {ReduceOp::kSum}, {{4, 4}, {5, 3}}},
       {.bytes_per_launch_of_axis = {2, 40}, .weight_of_byte_by_axis = {1, 7}}},
      {{{2, 3}, 1, {ReduceOp::kSum, ReduceOp::kMax}, {{7}, {12}}},
       {.bytes_per_launch = 1, .weight_of_byte_by_axis = {1, 3}}},
      {{{3, 2}, 1, {ReduceOp::kAvg}, {{11}, {12}}},
       {.bytes_per_launch = 0, .weight_of_byte_by_axis = {2, 9}}},
      {{{2, 2, 2}, 1, {ReduceOp::kSum}, {{11}, {8}}, 300},
       {.bytes_per_launch = 5, .weight_of_byte_by_axis = {20, 4, 1}}},
  };
  for (const Weighed& weighed : cases) {
    ExpectLightest(weighed.test, weighed.model);
    if (HasFailure()) return;
  }
}

TEST(RedistributeSearchTest, KeepsToABoundOnMemoryWheneverThatIsPossible) {
  int64_t narrowed = 0;
  const RedistributeCostModel model = {.bytes_per_launch = 10};
  std::vector<Case> cases = SmallCases();
  cases.push_back({{2, 2, 2}, 1, {ReduceOp::kSum}, {{11}}, 100});
  for (const Case& test : cases) {
    ForEachPair(test, model,
                [&](const ExhaustiveSearch& search, ShapeView shape, size_t i,
                    size_t j) {
                  const Layout& from = search.layouts()[i];
                  const Layout& to = search.layouts()[j];
                  int64_t bound = NumElements(shape) * 4;
                  while (true) {
                    const auto plan = PlanRedistribute(
                        from, to, shape, kElementSize, model, bound);
                    const int64_t weight = search.Weight(i, j, bound);
                    if (!plan.ok()) {
                      ASSERT_EQ(plan.status().code(),
                                absl::StatusCode::kResourceExhausted);
                      ASSERT_EQ(weight, kNever)
                          << plan.status() << " within " << bound;
                      break;
                    }
                    ASSERT_LE(plan->peak_elements, bound);
                    ASSERT_EQ(WeightOf(*plan, shape, model), weight)
                        << plan->ToString() << "within " << bound;
                    bound = plan->peak_elements - 1;
                    ++narrowed;
                  }
                });
    if (HasFailure()) return;
  }
  std::cout << narrowed << " bounded plans\n";
}

// The search costs much more than the candidates, and rarely finds better.
TEST(RedistributeSearchTest, ACandidateUsuallyWins) {
  const RedistributeCostModel model = {.bytes_per_launch = 100};
  const Case test = {
      {2, 2}, 2, {ReduceOp::kSum, ReduceOp::kMax}, {{8, 6}, {5, 3}}};
  int pairs = 0;
  int won = 0;
  ForEachPair(
      test, model,
      [&](const ExhaustiveSearch& search, ShapeView shape, size_t i, size_t j) {
        if (i == j) return;
        const RedistributeProblem problem = {search.layouts()[i],
                                             search.layouts()[j], shape,
                                             kElementSize, model};
        const auto path = LightestCandidate(problem);
        ASSERT_TRUE(path.has_value());
        ASSERT_GE(path->weight, search.Weight(i, j));
        ++pairs;
        won += path->weight == search.Weight(i, j) ? 1 : 0;
      });
  EXPECT_GT(won, pairs * 9 / 10) << "of " << pairs;
}

}  // namespace
}  // namespace crosshatch
