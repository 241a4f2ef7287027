// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_RULES_SPLIT_DIM_H_
#define CROSSHATCH_DTENSOR_RULES_SPLIT_DIM_H_

/// \file
/// A dim that is split, as the local programs of rules see it.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "crosshatch/dtensor/layout/box.h"
#include "crosshatch/dtensor/rules/op_rule.h"

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

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_RULES_SPLIT_DIM_H_
