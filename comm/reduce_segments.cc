// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/reduce_segments.h"

#include <algorithm>

#include "absl/container/inlined_vector.h"
#include "crosshatch/base/check.h"

namespace crosshatch {

void ReduceSegments(const Collective& collective,
                    absl::Span<SegmentCursor> sources, SegmentCursor to,
                    int64_t count, const KernelTable& kernels,
                    KernelContext& context) {
  absl::InlinedVector<const void*, 8> pointers(sources.size());
  AccumulateRanksArgs args{.op = collective.reduce_op,
                           .sources = pointers.data(),
                           .num_sources = static_cast<int>(sources.size()),
                           .dtype = collective.dtype,
                           .out_dtype = collective.dtype,
                           .scale = collective.scale};
  while (count > 0) {
    int64_t n = std::min(count, to.contiguous());
    for (size_t i = 0; i < sources.size(); ++i) {
      pointers[i] = sources[i].data();
      n = std::min(n, sources[i].contiguous());
    }
    CH_CHECK(n > 0) << "a list of segments ends " << count
                    << " elements too early";
    args.out = to.data();
    args.count = n;
    kernels.accumulate_ranks(args, context);
    for (SegmentCursor& source : sources) source.Advance(n);
    to.Advance(n);
    count -= n;
  }
}

}  // namespace crosshatch
