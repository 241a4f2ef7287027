// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_KERNEL_COPY_H_
#define CROSSHATCH_COMM_KERNEL_COPY_H_

/// \file
/// Copies between lists of segments by the kernels of a device, for engines
/// that move what the host cannot address. CopySegments is the host's.

#include <cstdint>

#include "crosshatch/comm/segment_cursor.h"
#include "crosshatch/tensor/dtype.h"
#include "crosshatch/tensor/kernels/kernel_table.h"
#include "crosshatch/tensor/stream.h"

namespace crosshatch {

/// Copies `count` elements of `dtype`, bit for bit. Does nothing if both sides
/// are the same memory. Launches one kernel for each stretch in which both
/// sides have runs of one length and stride: one for a matrix's columns that
/// are packed.
/// \param context of the queue that the kernels are launched on.
void CopyByKernels(SegmentCursor from, SegmentCursor to, int64_t count,
                   DType dtype, const KernelTable& kernels,
                   KernelContext& context);

}  // namespace crosshatch

#endif  // CROSSHATCH_COMM_KERNEL_COPY_H_
