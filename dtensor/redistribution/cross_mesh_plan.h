// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_REDISTRIBUTION_CROSS_MESH_PLAN_H_
#define CROSSHATCH_DTENSOR_REDISTRIBUTION_CROSS_MESH_PLAN_H_

/// \file
/// How to bring a tensor from a layout on one mesh to a layout on another: of
/// another shape or order, over the same ranks, some of them or none.
///
/// A plan is a value, as those on one mesh are (plan.h). It has
/// three parts, of which the first and the last are mostly empty:
///
/// - settle: pending reductions are done, on the source's mesh; scattered where
///   that is cheaper.
/// - exchange: each rank of the destination takes every element that it lacks
///   from one rank that holds it, straight to its final place. What it holds
///   itself is copied and not sent.
/// - finish: values become summands, locally, on the destination's mesh.
///
/// Who sends: without pending reductions each rank of the source holds one
/// shard, and the ranks that differ along replicated axes hold the same one.
/// Of these, the rank with the fewest elements to send takes the next piece of
/// the shard, the receivers in the order of their world ranks; so two replicas
/// differ by at most one piece.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "crosshatch/dtensor/layout/box.h"
#include "crosshatch/dtensor/layout/layout.h"
#include "crosshatch/dtensor/redistribution/plan.h"
#include "crosshatch/dtensor/redistribution/step.h"
#include "crosshatch/tensor/shape.h"

namespace crosshatch {

struct CrossMeshPlan {
  /// On the source's mesh; ends where no reduction is pending.
  RedistributePlan settle;
  /// On the destination's mesh, without communication; starts where none is.
  RedistributePlan finish;
  /// World ranks of both meshes, ascending: the members of the exchange.
  std::vector<int> ranks;
  /// Some element changes its rank; else the exchange is local copies only.
  bool exchanges = false;
  /// Of all parts. An exchange is one collective.
  RedistributeCost cost;
  /// Some rank receives so many bytes in any plan: what its destination has
  /// beyond its source, or all of it where its source is a summand. Ranks that
  /// are to hold summands may share that among them.
  int64_t least_bytes = 0;

  const Layout& from() const { return settle.from; }
  /// The ends of the exchange.
  const Layout& source() const { return settle.to; }
  const Layout& destination() const { return finish.from; }
  const Layout& to() const { return finish.to; }

  /// One line for the whole, one for each step:
  ///
  ///     [P(sum)] on mesh(a=2) -> [R] on mesh(b=3): 2 collectives, 48 bytes
  ///     (lower bound 32)
  ///       reduce_scatter(sum, dim 0, axes=[a]) -> [S(0)]
  ///       exchange(ranks 0, 1, 2) -> [R]
  std::string ToString() const;
};

/// The cheapest of a few such plans for a tensor of global shape `shape`:
/// without reductions, nothing communicates less.
/// \error kInvalidArgument for layouts of tensors of different ndim, for a
/// shape that does not have that many dims, and for negative sizes.
absl::StatusOr<CrossMeshPlan> PlanCrossMesh(const Layout& from,
                                            const Layout& to, ShapeView shape,
                                            int64_t element_size);

/// What one rank gives to another in the exchange, or to itself.
struct CrossMeshMove {
  /// World ranks.
  int from = 0;
  int to = 0;
  /// Of the whole tensor. Not empty.
  Box box;

  /// "0 -> 2 [0:2, 0:3]".
  std::string ToString() const;
};

/// All moves, by shard of the source, then by receiver.
std::vector<CrossMeshMove> CrossMeshMoves(const CrossMeshPlan& plan,
                                          ShapeView shape);

/// What one rank does in the exchange. Lists are by index in plan.ranks;
/// nullopt where nothing passes between the two. A pair has at most one box to
/// pass.
struct CrossMeshTransfers {
  /// This rank's index.
  int self = 0;
  /// Relative to this rank's shard of plan.source().
  std::vector<std::optional<Box>> sends;
  /// Relative to this rank's shard of plan.destination().
  std::vector<std::optional<Box>> receives;
};

/// The part of `world_rank`, one of plan.ranks.
CrossMeshTransfers CrossMeshTransfersOf(const CrossMeshPlan& plan,
                                        ShapeView shape, int world_rank);

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_REDISTRIBUTION_CROSS_MESH_PLAN_H_
