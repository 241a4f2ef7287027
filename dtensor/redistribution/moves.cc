// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/redistribution/moves.h"

#include <algorithm>
#include <utility>

namespace crosshatch {
namespace {

using Kind = RedistributeStepKind;

}  // namespace

RedistributeStep LocalStep(const Layout& from, const Layout& to) {
  return {.kind = Kind::kLocal, .axes = {}, .from = from, .to = to};
}

std::optional<RedistributeStep> ExchangeStep(const Layout& from,
                                             const Layout& to,
                                             ShapeView shape) {
  if (from == to) return std::nullopt;
  if (MostMissing(from, to, shape) == 0) return LocalStep(from, to);
  AxisList axes;
  for (int dim = 0; dim < from.ndim(); ++dim) {
    const AxisList needed = NeededAxes(from, to, dim, shape[dim]);
    axes.insert(axes.end(), needed.begin(), needed.end());
  }
  std::sort(axes.begin(), axes.end());
  const bool gathers = std::none_of(axes.begin(), axes.end(), [&to](int axis) {
    return to.state_of_axis(axis).is_shard();
  });
  return RedistributeStep{.kind = gathers ? Kind::kAllGather : Kind::kAllToAll,
                          .axes = std::move(axes),
                          .from = from,
                          .to = to};
}

RedistributeStep ReductionStep(const Layout& from, const Layout& to,
                               const AxisList& axes) {
  const MeshLayout& mesh = from.mesh();
  const auto from_dims = from.dims();
  const bool whole =
      std::equal(from_dims.begin(), from_dims.end(), to.dims().begin());
  RedistributeStep step = {
      .kind = whole ? Kind::kAllReduce : Kind::kReduceScatter,
      .axes = {},
      .from = from,
      .to = to};
  int64_t averaged = 1;
  bool sums = false;
  for (int axis : axes) {
    if (mesh.size(axis) == 1) continue;
    step.op = from.state_of_axis(axis).op;
    if (step.op == ReduceOp::kAvg) averaged *= mesh.size(axis);
    sums |= step.op == ReduceOp::kSum;
    step.axes.push_back(axis);
  }
  if (step.axes.empty()) return LocalStep(from, to);
  if (sums) {
    step.op = ReduceOp::kSum;
    step.divisor = averaged;
  }
  return step;
}

RedistributeStep ToPartialStep(const Layout& from, const Layout& to,
                               const AxisList& axes) {
  RedistributeStep step = {
      .kind = Kind::kToPartial, .axes = axes, .from = from, .to = to};
  step.op = to.state_of_axis(axes[0]).op;
  for (int axis : axes) {
    const ReduceOp op = to.state_of_axis(axis).op;
    if (IsFilled(op)) step.op = op;
  }
  return step;
}

bool BecomesPartialInPlace(const Layout& from, const Layout& to,
                           const AxisList& axes, ShapeView shape) {
  AxisList filled;
  for (int axis : axes) {
    if (IsFilled(to.state_of_axis(axis).op)) filled.push_back(axis);
  }
  return MostMissing(from, to, shape, filled) == 0;
}

Layout InsertShard(const Layout& layout, int axis, int dim, int position,
                   const Layout& like) {
  DimSharding sharding = layout.sharding(dim);
  if (sharding.axes.empty()) sharding.unit = like.unit(dim);
  // Axes after a fine axis are fine.
  const int coarse =
      static_cast<int>(sharding.axes.size()) - sharding.fine_axes;
  if (position > coarse || (position == coarse && sharding.fine_axes > 0)) {
    ++sharding.fine_axes;
  }
  sharding.axes.insert(sharding.axes.begin() + position, axis);
  sharding.cuts.clear();
  return layout.WithDim(dim, std::move(sharding));
}

Layout AppendShard(const Layout& layout, int axis, int dim,
                   const Layout& like) {
  if (!layout.sharding(dim).cuts.empty()) return layout;
  return InsertShard(layout, axis, dim,
                     static_cast<int>(layout.axes_of_dim(dim).size()), like);
}

}  // namespace crosshatch
