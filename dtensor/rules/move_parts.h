// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_RULES_MOVE_PARTS_H_
#define CROSSHATCH_DTENSOR_RULES_MOVE_PARTS_H_

/// \file
/// Elements of a split dim that change ranks within the local program of a
/// rule: the dim stays split, and only what a rank lacks moves.

#include <cstddef>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "crosshatch/dtensor/layout/box.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

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

#endif  // CROSSHATCH_DTENSOR_RULES_MOVE_PARTS_H_
