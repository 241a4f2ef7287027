// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_REDISTRIBUTION_CROSS_MESH_PLAN_H_
#define CROSSHATCH_DTENSOR_REDISTRIBUTION_CROSS_MESH_PLAN_H_

/// \file
/// Plans from a layout on one mesh to a layout on another mesh. The meshes may
/// differ in shape, order and ranks, and need not have ranks in common.
///
/// A plan is a value, like those on one mesh (plan.h). It has three parts, of
/// which the first and the last are usually empty:
///
/// - reduce: performs pending reductions on the source's mesh, by a
///   reduce-scatter if that is cheaper.
/// - exchange: each rank of the destination receives every element that it
///   lacks from one rank that holds it, at its final place. Elements that it
///   holds itself are copied and not sent.
/// - finish: makes partial values of the result, locally, on the destination's
///   mesh.
///
/// The senders: without pending reductions each rank of the source holds one
/// shard, and the ranks that differ along replicated axes hold the same one. Of
/// these, the rank with the fewest elements to send sends the next piece of the
/// shard, with receivers in the order of their world ranks. Two replicas
/// therefore differ by at most one piece.

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
  /// On the source's mesh. Its result has no pending reductions.
  RedistributePlan reduce;
  /// On the destination's mesh, without communication. Its source has no
  /// pending reductions.
  RedistributePlan finish;
  /// World ranks of both meshes, ascending: the members of the exchange.
  std::vector<int> ranks;
  /// Whether some element changes its rank. If not, the exchange is local
  /// copies only.
  bool exchanges = false;
  /// The cost of all parts. An exchange is one collective.
  RedistributeCost cost;
  /// A lower bound on the bytes that some rank receives in any plan: what its
  /// destination has beyond its source, or all of it if its source is a
  /// summand. Ranks whose destination is partial may share that among them.
  int64_t least_bytes = 0;

  const Layout& from() const { return reduce.from; }
  /// The layouts before and after the exchange.
  const Layout& source() const { return reduce.to; }
  const Layout& destination() const { return finish.from; }
  const Layout& to() const { return finish.to; }

  /// Returns one line for the plan and one for each step:
  ///
  ///     [P(sum)] on mesh(a=2) -> [R] on mesh(b=3): 2 collectives, 48 bytes
  ///     (lower bound 32)
  ///       reduce_scatter(sum, dim 0, axes=[a]) -> [S(0)]
  ///       exchange(ranks 0, 1, 2) -> [R]
  std::string ToString() const;
};

/// Returns the cheapest of a few such plans for a tensor of global shape
/// `shape`. Without reductions, no plan communicates less.
/// \error kInvalidArgument for layouts of tensors of different ndim, for a
///     shape that does not have that many dims, and for negative sizes.
absl::StatusOr<CrossMeshPlan> PlanCrossMesh(const Layout& from,
                                            const Layout& to, ShapeView shape,
                                            int64_t element_size);

/// A box that one rank sends to another in the exchange, or copies itself.
struct CrossMeshMove {
  /// World ranks.
  int from = 0;
  int to = 0;
  /// The position in the global tensor. Not empty.
  Box box;

  /// Returns "0 -> 2 [0:2, 0:3]".
  std::string ToString() const;
};

/// Returns all moves, ordered by shard of the source, then by receiver.
std::vector<CrossMeshMove> CrossMeshMoves(const CrossMeshPlan& plan,
                                          ShapeView shape);

/// The transfers of one rank in the exchange. Lists are by index in plan.ranks;
/// nullopt if the two ranks exchange nothing. A pair exchanges at most one box
/// in each direction.
struct CrossMeshTransfers {
  /// This rank's index.
  int self = 0;
  /// Relative to this rank's shard of plan.source().
  std::vector<std::optional<Box>> sends;
  /// Relative to this rank's shard of plan.destination().
  std::vector<std::optional<Box>> receives;
};

/// Returns the transfers of `world_rank`, one of plan.ranks.
CrossMeshTransfers CrossMeshTransfersOf(const CrossMeshPlan& plan,
                                        ShapeView shape, int world_rank);

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_REDISTRIBUTION_CROSS_MESH_PLAN_H_
