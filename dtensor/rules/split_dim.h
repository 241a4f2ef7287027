// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_RULES_SPLIT_DIM_H_
#define CROSSHATCH_DTENSOR_RULES_SPLIT_DIM_H_

/// \file
/// A split dim in the local programs of rules: its parts, and collectives
/// between them.

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

/// The axes that split `dim`, and the part of each rank along them of its
/// `size` elements.
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

/// Returns the local tensors of the ranks that differ from this one in `axes`
/// only, concatenated along `dim` (the order of Layout::DimIntervals for a dim
/// that is split by `axes`). An all-gather, or nothing if there are no elements
/// at all. A communication error poisons the rank.
/// \param local contiguous. Its size of `dim` is this rank's entry of `counts`;
///     its other sizes are equal on all of these ranks.
/// \param counts sizes of `dim` by rank, in that order.
/// \param label names the op in errors and logs.
Tensor GatherParts(const Tensor& local, int dim,
                   absl::Span<const int64_t> counts, absl::Span<const int> axes,
                   const DeviceMesh& mesh, const char* label);

/// Each rank along `axes` has one interval of `dim` and needs another, in the
/// same indices.
struct PartsMove {
  int dim = 0;
  absl::InlinedVector<int, 2> axes;  ///< Major first.
  std::vector<Interval> has;         ///< By rank along `axes`, disjoint.
  std::vector<Interval> wants;       ///< Likewise.
  size_t here = 0;                   ///< This rank.
};

/// Returns what this rank needs, with zeros for what no rank has: an all-to-all
/// in which each rank receives what it needs, or nothing if no rank needs what
/// another has. A communication error poisons the rank.
/// \param local this rank's part, of has[here].size() along the dim.
/// \param label names the op in errors and logs.
Tensor MoveParts(const Tensor& local, const PartsMove& move,
                 const DeviceMesh& mesh, const char* label);

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_RULES_SPLIT_DIM_H_
