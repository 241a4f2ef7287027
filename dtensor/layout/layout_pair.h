// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_LAYOUT_LAYOUT_PAIR_H_
#define CROSSHATCH_DTENSOR_LAYOUT_LAYOUT_PAIR_H_

/// \file
/// What ranks lack when a tensor changes from one layout to another. Shards are
/// products of intervals, so the functions iterate over the chunks of each dim,
/// not over ranks.
///
/// `from` and `to` are layouts of one mesh and of tensors of `shape`. Only
/// SameShards and IsBeforeReduction consider pending reductions.

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

/// Returns the number of elements of the largest shard.
int64_t LargestShard(const Layout& layout, ShapeView shape);

/// Returns the largest number of elements that a rank's shard under `to` has
/// beyond its shard under `from`. It is 0 if and only if every rank already
/// holds its destination.
///
/// Ranks that differ only in `pooled` count as one that holds all their shards.
/// \pre axes in `pooled` do not split `to`.
int64_t MostMissing(const Layout& from, const Layout& to, ShapeView shape,
                    absl::Span<const int> pooled = {});

/// Returns whether every rank holds the same elements, with the same pending
/// reductions.
bool SameShards(const Layout& a, const Layout& b, ShapeView shape);

/// Returns whether `from` equals `to` except for pending reductions.
bool IsBeforeReduction(const Layout& from, const Layout& to);

/// Returns the axes along which some rank needs data for its part of `dim`,
/// which has `size` elements. Every rank finds its part among the ranks that
/// differ from it in these axes only, and in no smaller group. All of them
/// split `dim` under `from`. Ascending, without axes of size 1.
AxisList NeededAxes(const Layout& from, const Layout& to, int dim,
                    int64_t size);

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_LAYOUT_LAYOUT_PAIR_H_
