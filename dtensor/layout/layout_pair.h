// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_LAYOUT_LAYOUT_PAIR_H_
#define CROSSHATCH_DTENSOR_LAYOUT_LAYOUT_PAIR_H_

/// \file
/// What ranks lack when a tensor changes from one layout to another, without
/// going through the ranks one by one: shards are products of intervals, so it
/// is enough to go through the chunks of each dim.
///
/// Everywhere `from` and `to` are layouts of one mesh and of tensors of
/// `shape`. Pending reductions are not looked at but by SameShards and
/// IsBeforeReduction.

#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "crosshatch/dtensor/layout/layout.h"
#include "crosshatch/tensor/shape.h"

namespace crosshatch {

/// Mesh axes.
using AxisList = absl::InlinedVector<int, 4>;

inline bool HasAxis(absl::Span<const int> axes, int axis) {
  for (int a : axes) {
    if (a == axis) return true;
  }
  return false;
}

/// The elements of the largest shard, which is the one at coordinate 0.
int64_t LargestShard(const Layout& layout, ShapeView shape);

/// The most elements that a rank's shard under `to` has beyond its shard under
/// `from`: 0 if and only if every rank holds its destination already.
///
/// Ranks that differ only in `pooled` are taken as one that holds all their
/// shards. \pre axes in `pooled` do not split `to`.
int64_t MostMissing(const Layout& from, const Layout& to, ShapeView shape,
                    absl::Span<const int> pooled = {});

/// Whether every rank holds the same elements, and the same reductions are
/// pending.
bool SameShards(const Layout& a, const Layout& b, ShapeView shape);

/// Whether `from` is `to` but for reductions that are due.
bool IsBeforeReduction(const Layout& from, const Layout& to);

/// The axes along which some rank has to look for its part of `dim`, which has
/// `size` elements: every rank finds it among the ranks that differ from it in
/// these axes only, and in no smaller group. They all split `dim` under `from`;
/// ascending, those of size 1 left out.
AxisList NeededAxes(const Layout& from, const Layout& to, int dim,
                    int64_t size);

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_LAYOUT_LAYOUT_PAIR_H_
