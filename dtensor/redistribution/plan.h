// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_REDISTRIBUTION_PLAN_H_
#define CROSSHATCH_DTENSOR_REDISTRIBUTION_PLAN_H_

/// \file
/// How to bring a tensor from one layout to another of the same mesh.
///
/// A plan is a value: the same on every rank, printable, and computed without
/// communication. Between any two layouts it has few steps, because every shard
/// is a box:
///
/// - What is not partial moves by *one* exchange, over the fewest mesh axes
///   among which every rank finds all it needs: an all-gather where the
///   destination drops these axes, an all-to-all otherwise, nothing but a slice
///   where each rank holds its destination already. Elements that a rank holds
///   are never fetched.
/// - Pending reductions are done by reduce-scatters over axes that split the
///   tensor then and all-reduces over others, before or after slicing,
///   whichever is cheapest; sums and averages together. An axis that is partial
///   in both layouts alike is left alone.
/// - Replicated (or sharded) values become partial ones last, locally.

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
  /// The first step starts at `from`, each other where the one before it ends,
  /// the last ends at `to`. Empty if and only if `from == to`.
  std::vector<RedistributeStep> steps;
  RedistributeCost cost;
  /// Some rank receives so many bytes in any plan (RedistributeLowerBound).
  int64_t least_bytes = 0;
  /// The most elements that a rank holds on the way, the source and the
  /// destination included (HeldElements).
  int64_t peak_elements = 0;

  /// One line for the whole, one for each step with the layout it leads to:
  ///
  ///     [P(sum),S(0)] -> [R,R]: 2 collectives, 48 bytes (lower bound 48)
  ///       all_reduce(sum, axes=[dp]) -> [R,S(0)]
  ///       all_gather(dim 0, axes=[tp]) -> [R,R]
  std::string ToString() const;
};

/// The cheapest plan from `from` to `to` for a tensor of global shape `shape`
/// with elements of `element_size` bytes. No sequence of steps weighs less
/// where no reduction is pending and bytes weigh the same over all axes, where
/// the lower bound is met, and where SearchAllLayouts does not give up.
/// \param max_elements bounds RedistributePlan::peak_elements.
/// \error kInvalidArgument for layouts of different meshes, for a shape that
/// does not have their number of dims, for negative sizes, and for a model of
/// other axes or with negative weights; kResourceExhausted where no plan keeps
/// to `max_elements`.
absl::StatusOr<RedistributePlan> PlanRedistribute(
    const Layout& from, const Layout& to, ShapeView shape, int64_t element_size,
    const RedistributeCostModel& model = {},
    std::optional<int64_t> max_elements = std::nullopt);

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_REDISTRIBUTION_PLAN_H_
