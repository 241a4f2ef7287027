// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_REDISTRIBUTION_EXHAUSTIVE_SEARCH_H_
#define CROSSHATCH_DTENSOR_REDISTRIBUTION_EXHAUSTIVE_SEARCH_H_

/// \file
/// For tests: the cheapest redistributions by exhaustive search, without the
/// planner's heuristics.

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "crosshatch/base/reduce_op.h"
#include "crosshatch/dtensor/layout/box.h"
#include "crosshatch/dtensor/layout/layout.h"
#include "crosshatch/dtensor/redistribution/cost.h"
#include "crosshatch/mesh/mesh_layout.h"
#include "crosshatch/tensor/shape.h"

namespace crosshatch {

/// Finds the cheapest sequence of steps from each layout to each other, over
/// all sequences between all layouts. Computes what a step may do and costs
/// rank by rank.
class ExhaustiveSearch {
 public:
  static constexpr int64_t kElementSize = 4;
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

  ExhaustiveSearch(const MeshLayout& mesh, int ndim,
                   const std::vector<ReduceOp>& ops, ShapeView shape,
                   const RedistributeCostModel& model);

  const std::vector<Layout>& layouts() const { return layouts_; }

  /// Returns the weight of the cheapest sequence that holds at most
  /// `max_elements` elements on each rank; kNever if there is none.
  int64_t Weight(size_t from, size_t to, int64_t max_elements = kNever) const;

 private:
  struct Edge {
    int64_t weight = kNever;
    bool allocates = false;
  };

  /// Returns the elements on the rank with the most; index layouts_.size()
  /// stands for none.
  int64_t Held(size_t source, size_t backing, size_t next) const;
  /// Returns whether the layout is partial only on axes where one of the ends
  /// is, and on all axes where both are.
  bool IsBetween(size_t layout, size_t from, size_t to) const;
  Edge EdgeBetween(size_t i, size_t j) const;
  /// Returns the least weight over groups in which all ranks find their
  /// destination.
  int64_t ExchangeWeight(size_t i, size_t j, int64_t bytes) const;
  Edge Reduction(size_t i, size_t j, const std::vector<int>& axes) const;
  int64_t CollectiveWeight(int64_t bytes, const std::vector<int>& axes) const;
  /// Valid if each element of a destination is contributed by exactly one of
  /// the ranks that will be reduced to it, or, for averages and the like, by
  /// each.
  Edge ToPartial(size_t i, size_t j, const std::vector<int>& axes) const;

  const MeshLayout mesh_;
  const RedistributeCostModel model_;
  const std::vector<Layout> layouts_;
  /// By layout and rank.
  std::vector<std::vector<Box>> boxes_;
  std::vector<std::vector<Edge>> edges_;
};

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_REDISTRIBUTION_EXHAUSTIVE_SEARCH_H_
