// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_REDISTRIBUTE_PLAN_H_
#define CROSSHATCH_DTENSOR_REDISTRIBUTE_PLAN_H_

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
/// - Pending reductions are done by one reduce-scatter over the axes that end
///   up splitting the tensor and one all-reduce over the others, before or
///   after slicing, whichever is cheapest; sums and averages together.
/// - Replicated (or sharded) values become partial ones last, locally.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "crosshatch/dtensor/layout.h"
#include "crosshatch/dtensor/redistribute_step.h"
#include "crosshatch/tensor/shape.h"

namespace crosshatch {

/// How the planner weighs one plan against another.
struct RedistributeCostModel {
  /// What starting a collective costs, as the bytes received in that time.
  int64_t bytes_per_launch = 32768;

  int64_t Weight(const RedistributeCost& cost) const {
    return cost.bytes + cost.launches * bytes_per_launch;
  }
};

struct RedistributePlan {
  Layout from;
  Layout to;
  /// The first step starts at `from`, each other where the one before it ends,
  /// the last ends at `to`. Empty if and only if `from == to`.
  std::vector<RedistributeStep> steps;
  RedistributeCost cost;

  /// One line for the whole, one for each step with the layout it leads to:
  ///
  ///     [P(sum),S(0)] -> [R,R]: 2 collectives, 48 bytes
  ///       all_reduce(sum, axes=[dp]) -> [R,S(0)]
  ///       all_gather(dim 0, axes=[tp]) -> [R,R]
  std::string ToString() const;
};

/// The cheapest plan found from `from` to `to` for a tensor of global shape
/// `shape` with elements of `element_size` bytes.
/// \error kInvalidArgument for layouts of different meshes, for a shape that
/// does not have their number of dims, and for negative sizes.
absl::StatusOr<RedistributePlan> PlanRedistribute(
    const Layout& from, const Layout& to, ShapeView shape, int64_t element_size,
    const RedistributeCostModel& model = {});

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_REDISTRIBUTE_PLAN_H_
