// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_RULES_GATHER_PARTS_H_
#define CROSSHATCH_DTENSOR_RULES_GATHER_PARTS_H_

/// \file
/// The exchange of local results within the local program of a rule.

#include <cstdint>

#include "absl/types/span.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

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

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_RULES_GATHER_PARTS_H_
