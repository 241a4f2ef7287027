// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_REDISTRIBUTION_SEGMENTS_H_
#define CROSSHATCH_DTENSOR_REDISTRIBUTION_SEGMENTS_H_

/// \file
/// A box of a strided tensor as the segments that collectives take.

#include "crosshatch/comm/communicator.h"
#include "crosshatch/dtensor/layout/box.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

/// Appends the elements of `box`, counted from the first element of the local
/// tensor `t`, in row-major order of the box. As few segments as the strides
/// allow: one where the box is a run of runs, else one for each index of the
/// outer dims. The addresses are null where `t` has no memory.
/// \pre box lies within t.sizes(); 0 <= strides
void AppendSegments(const Tensor& t, const Box& box, SegmentList& segments);

/// The segments of one box.
SegmentList SegmentsOf(const Tensor& t, const Box& box);

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_REDISTRIBUTION_SEGMENTS_H_
