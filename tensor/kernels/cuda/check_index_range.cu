// SPDX-License-Identifier: Apache-2.0
#include <cstdint>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/kernels/cuda/complain.cuh"
#include "crosshatch/tensor/kernels/cuda/element.cuh"
#include "crosshatch/tensor/kernels/cuda/entry_points.h"

namespace crosshatch::internal {
namespace {

struct Range {
  int64_t bound;
  bool has_ignored;
  int64_t ignored;
};

__global__ void __launch_bounds__(256)
    CheckIndexRangeKernel(const void* indices, DType dtype, int64_t count,
                          Range range, Complainer complainer) {
  for (int64_t i = GlobalThread(); i < count; i += GlobalThreads()) {
    const int64_t index = LoadIndex(indices, dtype, i);
    if ((index < 0 || index >= range.bound) &&
        !(range.has_ignored && index == range.ignored)) {
      Complain(complainer, index, i, range.bound);
    }
  }
}

}  // namespace

void CudaCheckIndexRange(const CheckIndexRangeArgs& args,
                         KernelContext& context) {
  CH_CHECK(!IsFloatingPoint(args.dtype) && args.dtype != DType::kBool)
      << args.op << " kernel: indices of " << Name(args.dtype);
  LaunchKernel(
      "check_index_range", &CheckIndexRangeKernel, GeometryOfItems(args.count),
      context, args.indices, args.dtype, args.count,
      Range{args.bound, args.ignored.has_value(), args.ignored.value_or(0)},
      ComplainerOf(context, ComplaintKind::kIndexInList, args.op, args.index,
                   args.named));
}

}  // namespace crosshatch::internal
