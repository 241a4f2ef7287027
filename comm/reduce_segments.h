// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_REDUCE_SEGMENTS_H_
#define CROSSHATCH_COMM_REDUCE_SEGMENTS_H_

/// \file
/// The sum of what ranks hold, in their order: the one code in which engines
/// add, so that their results have the same bits.

#include <cstdint>

#include "absl/types/span.h"
#include "crosshatch/comm/collective.h"
#include "crosshatch/comm/segment_cursor.h"
#include "crosshatch/tensor/kernels/kernel_table.h"
#include "crosshatch/tensor/stream.h"

namespace crosshatch {

/// Combines `count` elements of each source, one a rank in the order of ranks,
/// as the collective's dtype, op and scale say, and writes them to `to`. Each
/// element by itself: the same bits however a list is cut. As few kernels as
/// there are stretches in which all lie evenly. `to` may be a source. Runs on
/// the calling thread, or, with `context` of a device's queue, on that.
void ReduceSegments(const Collective& collective,
                    absl::Span<SegmentCursor> sources, SegmentCursor to,
                    int64_t count, const KernelTable& kernels,
                    KernelContext& context);

}  // namespace crosshatch

#endif  // CROSSHATCH_COMM_REDUCE_SEGMENTS_H_
