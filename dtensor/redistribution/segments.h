// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_REDISTRIBUTION_SEGMENTS_H_
#define CROSSHATCH_DTENSOR_REDISTRIBUTION_SEGMENTS_H_

/// \file
/// Converts a box of a strided tensor to the segments that collectives take.

#include "crosshatch/comm/communicator.h"
#include "crosshatch/dtensor/layout/box.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

/// Appends the elements of `box`, relative to the first element of the local
/// tensor `t`, in row-major order of the box. Appends as few segments as the
/// strides allow: one if the box is a run of runs, otherwise one for each index
/// of the outer dims. The addresses are null if `t` has no memory.
/// \pre box is within t.sizes(); 0 <= strides
void AppendSegments(const Tensor& t, const Box& box, SegmentList& segments);

/// Returns the segments of one box.
SegmentList SegmentsOf(const Tensor& t, const Box& box);

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_REDISTRIBUTION_SEGMENTS_H_
