// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_RULES_SPLIT_DIM_H_
#define CROSSHATCH_DTENSOR_RULES_SPLIT_DIM_H_

/// \file
/// A dim that is split, as the local programs of rules see it.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "crosshatch/dtensor/layout/box.h"
#include "crosshatch/dtensor/rules/op_rule.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

/// Which axes split `dim`, and what each rank along them has of its `size`
/// elements.
struct SplitDim {
  SplitDim(const RuleCall& call, const Layout& layout, int dim, int64_t size)
      : dim(dim),
        axes(layout.axes_of_dim(dim).begin(), layout.axes_of_dim(dim).end()),
        parts(layout.DimIntervals(dim, size)) {
    for (int axis : axes) {
      here = here * static_cast<size_t>(call.mesh.size(axis)) +
             static_cast<size_t>(call.coordinate[axis]);
    }
  }

  int dim;
  absl::InlinedVector<int, 2> axes;  ///< Major first.
  std::vector<Interval> parts;       ///< By rank along `axes`, ascending.
  size_t here = 0;                   ///< This rank.
};

/// The local tensors of the ranks that differ from this one in `axes` only, one
/// after the other along `dim` (the order of Layout::DimIntervals for a dim
/// that is split by `axes`). An all-gather; nothing where there are no elements
/// at all. An error of communication poisons the rank.
/// \param local contiguous; its size of `dim` is this rank's of `counts`, its
///     other sizes are the same on all of these ranks
/// \param counts sizes of `dim` by rank, in that order
/// \param label names the op in errors and logs
Tensor GatherParts(const Tensor& local, int dim,
                   absl::Span<const int64_t> counts, absl::Span<const int> axes,
                   const DeviceMesh& mesh, const char* label);

/// Each rank along `axes` has an interval of `dim` and wants another, both on
/// one line.
struct PartsMove {
  int dim = 0;
  absl::InlinedVector<int, 2> axes;  ///< Major first.
  std::vector<Interval> has;         ///< By rank along `axes`, disjoint.
  std::vector<Interval> wants;       ///< Likewise.
  size_t here = 0;                   ///< This rank.
};

/// Whether a rank wants what another one has.
bool MovesApart(const PartsMove& move);

/// What this rank wants, zeros for what nobody has: an all-to-all in which each
/// rank takes just what it wants, or nothing where nobody wants what another
/// has. An error of communication poisons the rank.
/// \param local this rank's part; has[here].size() along the dim
/// \param label names the op in errors and logs
Tensor MoveParts(const Tensor& local, const PartsMove& move,
                 const DeviceMesh& mesh, const char* label);

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_RULES_SPLIT_DIM_H_
