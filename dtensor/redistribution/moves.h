// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_REDISTRIBUTION_MOVES_H_
#define CROSSHATCH_DTENSOR_REDISTRIBUTION_MOVES_H_

/// \file
/// The steps there are between two layouts. Adjacent collectives of one kind
/// are one step here, over all their axes.

#include <optional>

#include "crosshatch/dtensor/layout/layout.h"
#include "crosshatch/dtensor/layout/layout_pair.h"
#include "crosshatch/dtensor/redistribution/step.h"
#include "crosshatch/tensor/shape.h"

namespace crosshatch {

/// \pre every rank holds its shard of `to` under `from`.
RedistributeStep LocalStep(const Layout& from, const Layout& to);

/// The step between layouts that differ in shards only, over the fewest axes:
/// an all-gather where these no longer split the result, an all-to-all
/// otherwise, a local one where each rank holds its destination already; none
/// where `from == to`.
std::optional<RedistributeStep> ExchangeStep(const Layout& from,
                                             const Layout& to, ShapeView shape);

/// Does the reductions over `axes`, pending in `from`: a reduce-scatter, or an
/// all-reduce where shards stay as they are; a local step where the axes have
/// one rank. Sums and averages are done at once.
/// \pre each shard of `to` is a part of that of `from`.
RedistributeStep ReductionStep(const Layout& from, const Layout& to,
                               const AxisList& axes);

/// Makes values summands over `axes`, which are partial in `to`.
/// \pre BecomesPartialInPlace(from, to, axes, shape)
RedistributeStep ToPartialStep(const Layout& from, const Layout& to,
                               const AxisList& axes);

/// Whether the shards of `from`, filled up to those of `to`, are partial over
/// `axes` as they stand: what one rank lacks, others along the axes have.
bool BecomesPartialInPlace(const Layout& from, const Layout& to,
                           const AxisList& axes, ShapeView shape);

/// `layout` with `axis` splitting `dim`, before the axis at `position` of those
/// that split it already. A dim that was whole takes its unit from `like`.
Layout InsertShard(const Layout& layout, int axis, int dim, int position,
                   const Layout& like);

/// Does the same, after all other axes of the dim.
Layout AppendShard(const Layout& layout, int axis, int dim, const Layout& like);

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_REDISTRIBUTION_MOVES_H_
