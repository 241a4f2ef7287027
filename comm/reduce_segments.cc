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
  absl::InlinedVector<int64_t, 8> strides(sources.size());
  AccumulateRanksArgs args{.op = collective.reduce_op,
                           .sources = pointers.data(),
                           .num_sources = static_cast<int>(sources.size()),
                           .dtype = collective.dtype,
                           .out_dtype = collective.dtype,
                           .scale = collective.scale,
                           .source_strides = strides.data()};
  while (count > 0) {
    const EvenRuns even_to = to.even_runs();
    int64_t run = std::min(count, even_to.run_elems);
    for (const SegmentCursor& source : sources) {
      run = std::min(run, source.even_runs().run_elems);
    }
    CH_CHECK(run > 0) << "a list of segments ends " << count
                      << " elements too early";
    const EvenRuns target = CutRuns(even_to, run);
    args.runs = std::min(target.runs, count / run);
    for (size_t i = 0; i < sources.size(); ++i) {
      const EvenRuns source = CutRuns(sources[i].even_runs(), run);
      args.runs = std::min(args.runs, source.runs);
      pointers[i] = sources[i].data();
      strides[i] = source.stride_elems;
    }
    args.out = to.data();
    args.out_stride = args.runs == 1 ? 0 : target.stride_elems;
    args.count = run;
    kernels.accumulate_ranks(args, context);
    for (SegmentCursor& source : sources) source.Skip(args.runs * run);
    to.Skip(args.runs * run);
    count -= args.runs * run;
  }
}

}  // namespace crosshatch
