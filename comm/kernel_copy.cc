// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/kernel_copy.h"

#include <algorithm>

#include "crosshatch/base/check.h"

namespace crosshatch {
namespace {

/// Returns a dtype of the same size that copies all bits of any value.
DType BitsOf(DType dtype) {
  switch (SizeOf(dtype)) {
    case 2:
      return DType::kUInt16;
    case 4:
      return DType::kInt32;
    case 8:
      return DType::kInt64;
    default:
      return dtype;
  }
}

}  // namespace

void CopyByKernels(SegmentCursor from, SegmentCursor to, int64_t count,
                   DType dtype, const KernelTable& kernels,
                   KernelContext& context) {
  const DType bits = BitsOf(dtype);
  while (count > 0) {
    const EvenRuns even_from = from.even_runs();
    const EvenRuns even_to = to.even_runs();
    const int64_t run =
        std::min({even_from.run_elems, even_to.run_elems, count});
    CH_CHECK(run > 0) << "a list of segments ends " << count
                      << " elements too early";
    const EvenRuns source = CutRuns(even_from, run);
    const EvenRuns target = CutRuns(even_to, run);
    const int64_t runs = std::min({source.runs, target.runs, count / run});
    const bool is_same =
        from.data() == to.data() &&
        (runs == 1 || source.stride_elems == target.stride_elems);
    if (!is_same) {
      CopyArgs args{.src = {.data = from.data(), .dtype = bits},
                    .out = {.data = to.data(), .dtype = bits}};
      args.shape = {.ndim = 2, .sizes = {runs, run}};
      args.src.strides[0] = source.stride_elems;
      args.src.strides[1] = 1;
      args.out.strides[0] = target.stride_elems;
      args.out.strides[1] = 1;
      kernels.copy(args, context);
    }
    from.Skip(runs * run);
    to.Skip(runs * run);
    count -= runs * run;
  }
}

}  // namespace crosshatch
