// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_REDISTRIBUTION_PLAN_H_
#define CROSSHATCH_DTENSOR_REDISTRIBUTION_PLAN_H_

/// \file
/// Plans from one layout to another of the same mesh.
///
/// A plan is a value: the same on every rank, printable, and computed without
/// communication. Between any two layouts it has few steps, because every shard
/// is a box:
///
/// - Values that are not partial move by *one* exchange, over the fewest mesh
///   axes among which every rank finds all it needs: an all-gather if the
///   destination drops these axes, otherwise an all-to-all; only a slice if
///   each rank already holds its destination. Elements that a rank holds are
///   never received.
/// - Pending reductions are performed by reduce-scatters over axes that split
///   the result and by all-reduces over others, before or after slicing,
///   whichever is cheapest. Sums and averages are combined. An axis that is
///   partial in both layouts with the same op is not reduced.
/// - Replicated (or sharded) values become partial last, locally.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "crosshatch/dtensor/layout/layout.h"
#include "crosshatch/dtensor/redistribution/cost.h"
#include "crosshatch/dtensor/redistribution/step.h"
#include "crosshatch/tensor/shape.h"

namespace crosshatch {

struct RedistributePlan {
  Layout from;
  Layout to;
  /// The first step starts at `from`, each other one where the previous one
  /// ends, and the last one ends at `to`. Empty if and only if `from == to`.
  std::vector<RedistributeStep> steps;
  RedistributeCost cost;
  /// A lower bound on the bytes that some rank receives in any plan
  /// (RedistributeLowerBound).
  int64_t least_bytes = 0;
  /// The most elements that a rank holds during the plan, including source and
  /// destination (HeldElements).
  int64_t peak_elements = 0;

  /// Returns one line for the plan, and one for each step with its resulting
  /// layout:
  ///
  ///     [P(sum),S(0)] -> [R,R]: 2 collectives, 48 bytes (lower bound 48)
  ///       all_reduce(sum, axes=[dp]) -> [R,S(0)]
  ///       all_gather(dim 0, axes=[tp]) -> [R,R]
  std::string ToString() const;
};

/// Returns the cheapest plan from `from` to `to` for a tensor of global shape
/// `shape` with elements of `element_size` bytes. It is optimal if no reduction
/// is pending and bytes weigh the same over all axes, if it meets the lower
/// bound, or if SearchAllLayouts does not give up.
/// \param max_elements bounds RedistributePlan::peak_elements.
/// \error kInvalidArgument for layouts of different meshes, for a shape of
///     another number of dims, for negative sizes, and for a model of other
///     axes or with negative weights; kResourceExhausted if no plan satisfies
///     `max_elements`.
absl::StatusOr<RedistributePlan> PlanRedistribute(
    const Layout& from, const Layout& to, ShapeView shape, int64_t element_size,
    const RedistributeCostModel& model = {},
    std::optional<int64_t> max_elements = std::nullopt);

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_REDISTRIBUTION_PLAN_H_
