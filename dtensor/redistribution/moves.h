// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_REDISTRIBUTION_MOVES_H_
#define CROSSHATCH_DTENSOR_REDISTRIBUTION_MOVES_H_

/// \file
/// The possible steps between two layouts. Adjacent collectives of one kind are
/// one step, over all their axes.

#include <optional>

#include "crosshatch/dtensor/layout/layout.h"
#include "crosshatch/dtensor/layout/layout_pair.h"
#include "crosshatch/dtensor/redistribution/step.h"
#include "crosshatch/tensor/shape.h"

namespace crosshatch {

/// \pre every rank holds its shard of `to` under `from`.
RedistributeStep LocalStep(const Layout& from, const Layout& to);

/// Returns the step between layouts that differ in shards only, over the fewest
/// axes: an all-gather if these no longer split the result, otherwise an
/// all-to-all; a local one if each rank already holds its destination; none if
/// `from == to`.
std::optional<RedistributeStep> ExchangeStep(const Layout& from,
                                             const Layout& to, ShapeView shape);

/// Returns the step that performs the reductions over `axes`, pending in
/// `from`: a reduce-scatter, or an all-reduce if shards do not change; a local
/// step if the axes have one rank. Sums and averages are combined.
/// \pre each shard of `to` is a part of that of `from`.
RedistributeStep ReductionStep(const Layout& from, const Layout& to,
                               const AxisList& axes);

/// Returns the step that makes values partial over `axes`, which are partial in
/// `to`.
/// \pre BecomesPartialInPlace(from, to, axes, shape)
RedistributeStep ToPartialStep(const Layout& from, const Layout& to,
                               const AxisList& axes);

/// Returns whether the shards of `from`, filled up to those of `to`, are
/// partial over `axes` as they are: the elements that one rank lacks are on
/// other ranks along the axes.
bool BecomesPartialInPlace(const Layout& from, const Layout& to,
                           const AxisList& axes, ShapeView shape);

/// Returns `layout` with `axis` splitting `dim`, before the axis at `position`
/// of those that split it. A dim that was not split takes its unit from `like`.
/// Cuts are dropped.
Layout InsertShard(const Layout& layout, int axis, int dim, int position,
                   const Layout& like);

/// Does the same, after all other axes of the dim. Returns `layout` if the dim
/// has cuts: another axis would not divide their chunks.
Layout AppendShard(const Layout& layout, int axis, int dim, const Layout& like);

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_REDISTRIBUTION_MOVES_H_
