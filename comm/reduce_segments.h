// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_REDUCE_SEGMENTS_H_
#define CROSSHATCH_COMM_REDUCE_SEGMENTS_H_

/// \file
/// Sums over ranks in rank order. All engines use this code, so that their
/// results have the same bits.

#include <cstdint>

#include "absl/types/span.h"
#include "crosshatch/comm/collective.h"
#include "crosshatch/comm/segment_cursor.h"
#include "crosshatch/tensor/kernels/kernel_table.h"
#include "crosshatch/tensor/stream.h"

namespace crosshatch {

/// Reduces `count` elements of the sources by the collective's dtype, op and
/// scale. There is one source per rank, in order. Writes the result to `to`,
/// which may be a source. The bits do not depend on how a list is split.
/// Launches one kernel for each range in which all lists have runs of one
/// length and stride. Runs on the calling thread, or on the device's queue of
/// `context`.
void ReduceSegments(const Collective& collective,
                    absl::Span<SegmentCursor> sources, SegmentCursor to,
                    int64_t count, const KernelTable& kernels,
                    KernelContext& context);

}  // namespace crosshatch

#endif  // CROSSHATCH_COMM_REDUCE_SEGMENTS_H_
