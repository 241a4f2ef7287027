// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/redistribution/cross_mesh_plan.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/dtensor/layout/layout_pair.h"
#include "crosshatch/dtensor/redistribution/moves.h"

namespace crosshatch {
namespace {

/// A part of the tensor that is not empty, and the world ranks that hold it.
struct HeldShard {
  Box box;
  std::vector<int> ranks;
};

/// Returns the distinct shards of a layout, which together are the tensor.
std::vector<HeldShard> ShardsOf(const Layout& layout, ShapeView shape) {
  const MeshLayout& mesh = layout.mesh();
  AxisList replicas;
  for (int axis = 0; axis < mesh.ndim(); ++axis) {
    if (!layout.state_of_axis(axis).is_shard()) replicas.push_back(axis);
  }
  std::vector<HeldShard> shards;
  for (int i = 0; i < mesh.size(); ++i) {
    const MeshCoordinate at = mesh.CoordinateAt(i);
    if (std::any_of(replicas.begin(), replicas.end(),
                    [&at](int axis) { return at[axis] != 0; })) {
      continue;
    }
    Box box = layout.LocalBox(shape, at);
    if (box.empty()) continue;
    shards.push_back({std::move(box), mesh.GroupRanks(replicas, at)});
  }
  return shards;
}

/// A rank of the destination whose shard is not empty.
struct Receiver {
  int rank;
  Box box;
};

std::vector<Receiver> ReceiversOf(const Layout& layout, ShapeView shape) {
  const MeshLayout& mesh = layout.mesh();
  std::vector<Receiver> receivers;
  for (int i = 0; i < mesh.size(); ++i) {
    Box box = layout.LocalBox(shape, mesh.CoordinateAt(i));
    if (box.empty()) continue;
    receivers.push_back({mesh.ranks()[i], std::move(box)});
  }
  std::sort(
      receivers.begin(), receivers.end(),
      [](const Receiver& a, const Receiver& b) { return a.rank < b.rank; });
  return receivers;
}

template <typename Visit>
void ForEachMove(const HeldShard& shard, const std::vector<Receiver>& receivers,
                 const Visit& visit) {
  std::vector<int64_t> sent(shard.ranks.size(), 0);
  for (const Receiver& receiver : receivers) {
    Box box = Intersect(shard.box, receiver.box);
    if (box.empty()) continue;
    int sender = receiver.rank;
    if (std::find(shard.ranks.begin(), shard.ranks.end(), receiver.rank) ==
        shard.ranks.end()) {
      const auto least = std::min_element(sent.begin(), sent.end());
      sender = shard.ranks[least - sent.begin()];
      *least += box.numel();
    }
    visit(CrossMeshMove{sender, receiver.rank, std::move(box)});
  }
}

/// Returns the elements that the rank which lacks the most receives.
int64_t MostReceived(const Layout& source, const Layout& destination,
                     ShapeView shape) {
  const MeshLayout& mesh = destination.mesh();
  int64_t most = 0;
  for (int i = 0; i < mesh.size(); ++i) {
    const Box wanted = destination.LocalBox(shape, mesh.CoordinateAt(i));
    int64_t missing = wanted.numel();
    if (missing <= most) continue;
    const auto at = source.mesh().CoordinateOf(mesh.ranks()[i]);
    if (at.has_value()) {
      missing -= Intersect(wanted, source.LocalBox(shape, *at)).numel();
    }
    most = std::max(most, missing);
  }
  return most;
}

/// Returns `layout` without pending reductions, with `axes`, over which there
/// were some, splitting each dim in turn, or nothing.
std::vector<Layout> SplitInsteadOfPartial(const Layout& layout,
                                          const AxisList& axes) {
  std::vector<Layout> layouts;
  for (int dim = 0; dim < layout.ndim() && !axes.empty(); ++dim) {
    Layout split = layout.WithoutPartials();
    for (int axis : axes) split = AppendShard(split, axis, dim, layout);
    layouts.push_back(std::move(split));
  }
  layouts.push_back(layout.WithoutPartials());
  return layouts;
}

/// Returns the axes with a pending reduction for which `fits` holds.
template <typename Fits>
AxisList PartialAxes(const Layout& layout, const Fits& fits) {
  AxisList axes;
  for (int axis = 0; axis < layout.mesh().ndim(); ++axis) {
    const AxisState& state = layout.state_of_axis(axis);
    if (state.is_partial() && fits(state.op)) axes.push_back(axis);
  }
  return axes;
}

AxisList PartialAxes(const Layout& layout) {
  return PartialAxes(layout, [](ReduceOp) { return true; });
}

/// Returns whether some element is the result of a reduction of several
/// operands.
bool HasSummands(const Layout& layout) {
  return layout.mesh().GroupSize(PartialAxes(layout)) > 1;
}

/// Returns CrossMeshPlan::least_bytes, in elements.
int64_t LeastReceived(const Layout& from, const Layout& to, ShapeView shape) {
  const AxisList pooled = PartialAxes(to);
  const bool summands = HasSummands(from);
  // Summands may pass from one mesh to the other unreduced.
  if (summands && !pooled.empty()) return 0;
  const MeshLayout& mesh = to.mesh();
  const std::vector<HeldShard> shards =
      summands ? std::vector<HeldShard>() : ShardsOf(from, shape);
  int64_t most = 0;
  for (int i = 0; i < mesh.size(); ++i) {
    const MeshCoordinate at = mesh.CoordinateAt(i);
    if (std::any_of(pooled.begin(), pooled.end(),
                    [&at](int axis) { return at[axis] != 0; })) {
      continue;
    }
    const Box wanted = to.LocalBox(shape, at);
    const std::vector<int> pool = mesh.GroupRanks(pooled, at);
    int64_t missing = wanted.numel();
    if (missing <= most) continue;
    for (const HeldShard& shard : shards) {
      if (std::any_of(pool.begin(), pool.end(), [&shard](int rank) {
            return std::find(shard.ranks.begin(), shard.ranks.end(), rank) !=
                   shard.ranks.end();
          })) {
        missing -= Intersect(wanted, shard.box).numel();
      }
    }
    const auto sharers = static_cast<int64_t>(pool.size());
    most = std::max(most, CeilDiv(missing, sharers));
  }
  return most;
}

absl::Status CheckArguments(const Layout& from, const Layout& to,
                            ShapeView shape) {
  if (from.ndim() == to.ndim() &&
      from.ndim() == static_cast<int>(shape.size()) &&
      std::all_of(shape.begin(), shape.end(),
                  [](int64_t size) { return size >= 0; })) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "redistribute across meshes: a tensor of shape ",
      crosshatch::ToString(shape), " from ", from.ToString(), " of ",
      from.ndim(), " dims on ", from.mesh().ToString(), " to ", to.ToString(),
      " of ", to.ndim(), " dims on ", to.mesh().ToString()));
}

}  // namespace

std::string CrossMeshPlan::ToString() const {
  std::string text = absl::StrCat(
      from().ToString(), " on ", from().mesh().ToString(), " -> ",
      to().ToString(), " on ", to().mesh().ToString(), ": ", cost.launches,
      " collective", cost.launches == 1 ? "" : "s", ", ", cost.bytes,
      " bytes (lower bound ", least_bytes, ")\n");
  const auto add_steps = [&text](const RedistributePlan& plan) {
    for (const RedistributeStep& step : plan.steps) {
      absl::StrAppend(&text, "  ", step.ToString(), " -> ", step.to.ToString(),
                      "\n");
    }
  };
  add_steps(reduce);
  if (exchanges) {
    absl::StrAppend(&text, "  exchange(ranks ", absl::StrJoin(ranks, ", "),
                    ") -> ", destination().ToString(), "\n");
  } else {
    absl::StrAppend(&text, "  local() -> ", destination().ToString(), "\n");
  }
  add_steps(finish);
  return text;
}

absl::StatusOr<CrossMeshPlan> PlanCrossMesh(const Layout& from,
                                            const Layout& to, ShapeView shape,
                                            int64_t element_size) {
  const RedistributeCostModel model;
  CH_RETURN_IF_ERROR(CheckArguments(from, to, shape));
  std::vector<RedistributePlan> reductions;
  for (const Layout& layout : SplitInsteadOfPartial(from, PartialAxes(from))) {
    CH_ASSIGN_OR_RETURN(RedistributePlan reduce,
                        PlanRedistribute(from, layout, shape, element_size));
    reductions.push_back(std::move(reduce));
  }
  std::vector<RedistributePlan> finishes;
  // Layouts from which `to` follows without communication: for sums and
  // products a rank needs only a part of the values.
  for (const Layout& layout :
       SplitInsteadOfPartial(to, PartialAxes(to, IsFilled))) {
    CH_ASSIGN_OR_RETURN(RedistributePlan finish,
                        PlanRedistribute(layout, to, shape, element_size));
    if (finish.cost.launches == 0) finishes.push_back(std::move(finish));
  }
  struct Choice {
    const RedistributePlan* reduce = nullptr;
    const RedistributePlan* finish = nullptr;
    int64_t received = 0;
    int64_t weight = std::numeric_limits<int64_t>::max();
  };
  Choice best;
  for (const RedistributePlan& reduce : reductions) {
    for (const RedistributePlan& finish : finishes) {
      const int64_t received = MostReceived(reduce.to, finish.from, shape);
      const int64_t weight =
          model.Weight(reduce.cost) +
          model.Weight({received * element_size, received > 0 ? 1 : 0});
      if (weight < best.weight) best = {&reduce, &finish, received, weight};
    }
  }
  // Replicas become summands of any kind without communication.
  CH_CHECK(best.reduce != nullptr) << to.ToString();

  CrossMeshPlan plan = {.reduce = *best.reduce, .finish = *best.finish};
  plan.ranks.assign(from.mesh().ranks().begin(), from.mesh().ranks().end());
  plan.ranks.insert(plan.ranks.end(), to.mesh().ranks().begin(),
                    to.mesh().ranks().end());
  std::sort(plan.ranks.begin(), plan.ranks.end());
  plan.ranks.erase(std::unique(plan.ranks.begin(), plan.ranks.end()),
                   plan.ranks.end());
  plan.exchanges = best.received > 0;
  plan.cost = plan.reduce.cost;
  plan.cost += {best.received * element_size, plan.exchanges ? 1 : 0};
  plan.least_bytes = LeastReceived(from, to, shape) * element_size;
  return plan;
}

std::string CrossMeshMove::ToString() const {
  return absl::StrCat(from, " -> ", to, " ", crosshatch::ToString(box));
}

std::vector<CrossMeshMove> CrossMeshMoves(const CrossMeshPlan& plan,
                                          ShapeView shape) {
  const std::vector<Receiver> receivers =
      ReceiversOf(plan.destination(), shape);
  std::vector<CrossMeshMove> moves;
  for (const HeldShard& shard : ShardsOf(plan.source(), shape)) {
    ForEachMove(shard, receivers, [&moves](CrossMeshMove move) {
      moves.push_back(std::move(move));
    });
  }
  return moves;
}

CrossMeshTransfers CrossMeshTransfersOf(const CrossMeshPlan& plan,
                                        ShapeView shape, int world_rank) {
  const auto index_of = [&plan](int rank) {
    return std::lower_bound(plan.ranks.begin(), plan.ranks.end(), rank) -
           plan.ranks.begin();
  };
  CrossMeshTransfers boxes;
  boxes.self = static_cast<int>(index_of(world_rank));
  boxes.sends.resize(plan.ranks.size());
  boxes.receives.resize(plan.ranks.size());
  const std::vector<Receiver> receivers =
      ReceiversOf(plan.destination(), shape);
  const auto me = std::find_if(receivers.begin(), receivers.end(),
                               [world_rank](const Receiver& receiver) {
                                 return receiver.rank == world_rank;
                               });
  for (const HeldShard& shard : ShardsOf(plan.source(), shape)) {
    const bool holds = std::find(shard.ranks.begin(), shard.ranks.end(),
                                 world_rank) != shard.ranks.end();
    const bool wants =
        me != receivers.end() && !Intersect(shard.box, me->box).empty();
    if (!holds && !wants) continue;
    ForEachMove(shard, receivers, [&](const CrossMeshMove& move) {
      if (move.from == world_rank) {
        boxes.sends[index_of(move.to)] =
            RelativeTo(move.box, shard.box.offsets);
      }
      if (move.to == world_rank) {
        boxes.receives[index_of(move.from)] =
            RelativeTo(move.box, me->box.offsets);
      }
    });
  }
  return boxes;
}

}  // namespace crosshatch
