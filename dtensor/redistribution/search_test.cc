// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/redistribution/search.h"

#include <algorithm>
#include <iostream>
#include <limits>
#include <map>
#include <random>
#include <set>

#include "absl/status/status.h"
#include "crosshatch/dtensor/layout/layout_testutil.h"
#include "crosshatch/dtensor/redistribution/plan.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

constexpr int64_t kElementSize = 4;
constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

std::vector<Box> BoxesOf(const Layout& layout, ShapeView shape) {
  std::vector<Box> boxes;
  for (int i = 0; i < layout.mesh().size(); ++i) {
    boxes.push_back(layout.LocalBox(shape, layout.mesh().CoordinateAt(i)));
  }
  return boxes;
}

/// The cheapest way from each layout to each other, found by going through all
/// sequences of steps between all layouts. What a step may do and what it costs
/// is worked out rank by rank.
class ExhaustiveSearch {
 public:
  ExhaustiveSearch(const MeshLayout& mesh, int ndim,
                   const std::vector<ReduceOp>& ops, ShapeView shape,
                   const RedistributeCostModel& model)
      : mesh_(mesh), model_(model), layouts_(AllLayouts(mesh, ndim, ops)) {
    for (const Layout& layout : layouts_) {
      boxes_.push_back(BoxesOf(layout, shape));
    }
    edges_.resize(layouts_.size());
    for (size_t i = 0; i < layouts_.size(); ++i) {
      for (size_t j = 0; j < layouts_.size(); ++j) {
        edges_[i].push_back(EdgeBetween(i, j));
      }
    }
  }

  const std::vector<Layout>& layouts() const { return layouts_; }

  /// The weight of the cheapest sequence that holds at most `max_elements`
  /// elements on each rank; kNever if there is none.
  int64_t Weight(size_t from, size_t to, int64_t max_elements = kNever) const {
    // A place is a layout and what backs it: the result of an earlier step, or
    // the source.
    using Place = std::pair<size_t, size_t>;
    const size_t source = layouts_.size();
    std::map<Place, int64_t> best = {{{from, source}, 0}};
    std::set<std::pair<int64_t, Place>> open = {{0, {from, source}}};
    if (Held(from, source, source) > max_elements) return kNever;
    while (!open.empty()) {
      const auto [weight, place] = *open.begin();
      open.erase(open.begin());
      const auto [at, backing] = place;
      if (at == to) return weight;
      for (size_t next = 0; next < layouts_.size(); ++next) {
        const Edge& edge = edges_[at][next];
        if (edge.weight == kNever || !IsBetween(next, from, to)) continue;
        size_t next_backing = backing;
        if (edge.allocates) {
          if (Held(from, backing, next) > max_elements) continue;
          // Without a bound it does not matter.
          if (max_elements != kNever) next_backing = next;
        }
        const int64_t total = weight + edge.weight;
        const Place there = {next, next_backing};
        const auto [it, is_new] = best.emplace(there, total);
        if (!is_new && it->second <= total) continue;
        it->second = total;
        open.insert({total, there});
      }
    }
    return kNever;
  }

 private:
  struct Edge {
    int64_t weight = kNever;
    bool allocates = false;
  };

  /// Elements on the rank with most; index layouts_.size() stands for none.
  int64_t Held(size_t source, size_t backing, size_t next) const {
    int64_t most = 0;
    for (int r = 0; r < mesh_.size(); ++r) {
      int64_t held = boxes_[source][r].numel();
      for (size_t other : {backing, next}) {
        if (other < layouts_.size()) held += boxes_[other][r].numel();
      }
      most = std::max(most, held);
    }
    return most;
  }

  /// Partial only as one of the ends is, and always as both are.
  bool IsBetween(size_t layout, size_t from, size_t to) const {
    for (int axis = 0; axis < mesh_.ndim(); ++axis) {
      const AxisState& before = layouts_[from].state_of_axis(axis);
      const AxisState& after = layouts_[to].state_of_axis(axis);
      const AxisState& between = layouts_[layout].state_of_axis(axis);
      if (between == before || between == after) continue;
      if (between.is_partial()) return false;
      if (before.is_partial() && before == after) return false;
    }
    return true;
  }

  Edge EdgeBetween(size_t i, size_t j) const {
    std::vector<int> reduced;
    std::vector<int> created;
    for (int axis = 0; axis < mesh_.ndim(); ++axis) {
      const AxisState& before = layouts_[i].state_of_axis(axis);
      const AxisState& after = layouts_[j].state_of_axis(axis);
      if (before == after) continue;
      if (before.is_partial()) reduced.push_back(axis);
      if (after.is_partial()) created.push_back(axis);
    }
    if (!reduced.empty() && !created.empty()) return {};
    if (!reduced.empty()) return Reduction(i, j, reduced);
    if (!created.empty()) return ToPartial(i, j, created);

    int64_t missing = 0;
    for (int r = 0; r < mesh_.size(); ++r) {
      missing =
          std::max(missing, boxes_[j][r].numel() -
                                Intersect(boxes_[i][r], boxes_[j][r]).numel());
    }
    if (missing == 0) return {0, false};
    return {ExchangeWeight(i, j, missing * kElementSize), true};
  }

  /// The least of a group in which all ranks find their destination.
  int64_t ExchangeWeight(size_t i, size_t j, int64_t bytes) const {
    std::vector<int> split;
    for (int axis = 0; axis < mesh_.ndim(); ++axis) {
      if (layouts_[i].state_of_axis(axis).is_shard()) split.push_back(axis);
    }
    int64_t least = kNever;
    for (unsigned mask = 0; mask < 1u << split.size(); ++mask) {
      std::vector<int> axes;
      for (size_t k = 0; k < split.size(); ++k) {
        if (mask >> k & 1) axes.push_back(split[k]);
      }
      bool found = true;
      for (int r = 0; r < mesh_.size(); ++r) {
        int64_t numel = 0;
        for (int peer : mesh_.GroupRanks(axes, mesh_.CoordinateAt(r))) {
          numel += Intersect(boxes_[i][peer], boxes_[j][r]).numel();
        }
        found &= numel == boxes_[j][r].numel();
      }
      if (found) least = std::min(least, CollectiveWeight(bytes, axes));
    }
    return least;
  }

  Edge Reduction(size_t i, size_t j, const std::vector<int>& axes) const {
    bool same = true;
    int64_t most = 0;
    for (int r = 0; r < mesh_.size(); ++r) {
      if (!Contains(boxes_[i][r], boxes_[j][r])) return {};
      same &= boxes_[i][r].numel() == boxes_[j][r].numel();
      most = std::max(most, boxes_[j][r].numel());
    }
    const int64_t group = mesh_.GroupSize(axes);
    if (group == 1 || most == 0) return {0, false};
    const int64_t received =
        same ? most + (group - 2) * ((most + group - 1) / group)
             : (group - 1) * most;
    return {CollectiveWeight(received * kElementSize, axes), true};
  }

  int64_t CollectiveWeight(int64_t bytes, const std::vector<int>& axes) const {
    int64_t of_byte = model_.weight_of_byte_by_axis.empty() ? 1 : 0;
    for (size_t a = 0; a < model_.weight_of_byte_by_axis.size(); ++a) {
      if (std::find(axes.begin(), axes.end(), static_cast<int>(a)) !=
          axes.end()) {
        of_byte = std::max(of_byte, model_.weight_of_byte_by_axis[a]);
      }
    }
    return bytes * of_byte + model_.LaunchWeight(axes);
  }

  /// Valid if each element of a destination is put in by one of those who will
  /// be reduced to it, or, for averages and the like, by each.
  Edge ToPartial(size_t i, size_t j, const std::vector<int>& axes) const {
    std::vector<int> filled;
    for (int axis : axes) {
      const ReduceOp op = layouts_[j].state_of_axis(axis).op;
      if (op == ReduceOp::kSum || op == ReduceOp::kProduct) {
        filled.push_back(axis);
      }
    }
    for (int r = 0; r < mesh_.size(); ++r) {
      int64_t numel = 0;
      for (int peer : mesh_.GroupRanks(filled, mesh_.CoordinateAt(r))) {
        const MeshCoordinate at = mesh_.CoordinateAt(peer);
        const bool puts_in =
            std::all_of(filled.begin(), filled.end(), [&](int axis) {
              return !layouts_[i].state_of_axis(axis).is_replicate() ||
                     at[axis] == 0;
            });
        if (!puts_in) continue;
        numel += Intersect(boxes_[i][peer], boxes_[j][r]).numel();
      }
      if (numel != boxes_[j][r].numel()) return {};
    }
    return {0, mesh_.GroupSize(filled) > 1};
  }

  const MeshLayout mesh_;
  const RedistributeCostModel model_;
  const std::vector<Layout> layouts_;
  /// By layout and rank.
  std::vector<std::vector<Box>> boxes_;
  std::vector<std::vector<Edge>> edges_;
};

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
  /// Of 1000 pairs of layouts, how many.
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

TEST(RedistributeSearchTest, FindsWhatAnExhaustiveSearchFinds) {
  std::vector<Case> cases = SmallCases();
  for (Case& test : SampledCases()) cases.push_back(std::move(test));
  for (int64_t launch : {0, 10, 1000}) {
    const RedistributeCostModel model = {.bytes_per_launch = launch};
    for (const Case& test : cases) {
      ForEachPair(
          test, model,
          [&](const ExhaustiveSearch& search, ShapeView shape, size_t i,
              size_t j) {
            const auto plan =
                PlanRedistribute(search.layouts()[i], search.layouts()[j],
                                 shape, kElementSize, model);
            ASSERT_TRUE(plan.ok()) << plan.status();
            ASSERT_EQ(WeightOf(*plan, shape, model), search.Weight(i, j))
                << "a launch weighs " << launch << "\n"
                << plan->ToString();
          });
      if (HasFailure()) return;
    }
  }
}

TEST(RedistributeSearchTest, WeighsLaunchesByAxis) {
  const Case test = {{2, 2}, 2, {ReduceOp::kSum}, {{4, 4}, {5, 3}, {8, 6}}};
  const RedistributeCostModel model = {.bytes_per_launch_of_axis = {40, 2}};
  ForEachPair(
      test, model,
      [&](const ExhaustiveSearch& search, ShapeView shape, size_t i, size_t j) {
        const auto plan =
            PlanRedistribute(search.layouts()[i], search.layouts()[j], shape,
                             kElementSize, model);
        ASSERT_TRUE(plan.ok()) << plan.status();
        ASSERT_EQ(WeightOf(*plan, shape, model), search.Weight(i, j))
            << plan->ToString();
      });
}

TEST(RedistributeSearchTest, WeighsBytesByAxis) {
  struct Weighed {
    Case test;
    RedistributeCostModel model;
  };
  const std::vector<Weighed> cases = {
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
    ForEachPair(
        weighed.test, weighed.model,
        [&](const ExhaustiveSearch& search, ShapeView shape, size_t i,
            size_t j) {
          const auto plan =
              PlanRedistribute(search.layouts()[i], search.layouts()[j], shape,
                               kElementSize, weighed.model);
          ASSERT_TRUE(plan.ok()) << plan.status();
          ASSERT_EQ(WeightOf(*plan, shape, weighed.model), search.Weight(i, j))
              << plan->ToString();
        });
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

}  // namespace
}  // namespace crosshatch
