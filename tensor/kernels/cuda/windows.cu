// SPDX-License-Identifier: Apache-2.0
#include <cstdint>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/kernels/cuda/elementwise.cuh"
#include "crosshatch/tensor/kernels/cuda/entry_points.h"

namespace crosshatch::internal {
namespace {

/// One thread per element of a window: adjacent threads write adjacent
/// elements.
__global__ void __launch_bounds__(256)
    UnfoldKernel(WindowsArgs args, int64_t count) {
  const WindowDim& rows = args.rows;
  const WindowDim& cols = args.cols;
  for (int64_t i = GlobalThread(); i < count; i += GlobalThreads()) {
    int64_t rest = i;
    const auto next = [&rest](int64_t size) {
      const int64_t at = rest % size;
      rest /= size;
      return at;
    };
    const int64_t kw = next(cols.kernel);
    const int64_t kh = next(rows.kernel);
    const int64_t c = next(args.channels);
    const int64_t w =
        next(cols.windows) * cols.stride + kw * cols.dilation - cols.padding;
    const int64_t h =
        next(rows.windows) * rows.stride + kh * rows.dilation - rows.padding;
    const bool inside = h >= 0 && h < rows.size && w >= 0 && w < cols.size;
    CopyBits(args.out, i, inside ? args.in : nullptr,
             ((rest * args.channels + c) * rows.size + h) * cols.size + w,
             SizeOf(args.dtype));
  }
}

/// Returns the window whose element k is element `at` of the dim, or -1.
__device__ __forceinline__ int64_t WindowOf(const WindowDim& dim, int64_t at,
                                            int64_t k) {
  const int64_t start = at + dim.padding - k * dim.dilation;
  if (start < 0 || start % dim.stride != 0) return -1;
  const int64_t window = start / dim.stride;
  return window < dim.windows ? window : -1;
}

/// One thread per element of an image.
template <typename C>
__global__ void __launch_bounds__(256)
    FoldKernel(WindowsArgs args, int64_t count) {
  const WindowDim& rows = args.rows;
  const WindowDim& cols = args.cols;
  for (int64_t i = GlobalThread(); i < count; i += GlobalThreads()) {
    const int64_t w = i % cols.size;
    const int64_t h = i / cols.size % rows.size;
    const int64_t c = i / cols.size / rows.size % args.channels;
    const int64_t image = i / cols.size / rows.size / args.channels;
    C sum = C(0);
    for (int64_t kh = 0; kh < rows.kernel; ++kh) {
      const int64_t oh = WindowOf(rows, h, kh);
      if (oh < 0) continue;
      for (int64_t kw = 0; kw < cols.kernel; ++kw) {
        const int64_t ow = WindowOf(cols, w, kw);
        if (ow < 0) continue;
        const int64_t window = (image * rows.windows + oh) * cols.windows + ow;
        sum += LoadElement<C>(
            args.in, args.dtype,
            ((window * args.channels + c) * rows.kernel + kh) * cols.kernel +
                kw);
      }
    }
    StoreElement(args.out, args.dtype, i, sum);
  }
}

}  // namespace

void CudaUnfold(const WindowsArgs& args, KernelContext& context) {
  const int64_t count = args.images * args.rows.windows * args.cols.windows *
                        args.channels * args.rows.kernel * args.cols.kernel;
  LaunchKernel("unfold", &UnfoldKernel, GeometryOfItems(count), context, args,
               count);
}

void CudaFold(const WindowsArgs& args, KernelContext& context) {
  CH_CHECK(IsFloatingPoint(args.dtype)) << "fold of " << Name(args.dtype);
  const int64_t count =
      args.images * args.channels * args.rows.size * args.cols.size;
  const LaunchGeometry geometry = GeometryOfItems(count);
  if (args.dtype == DType::kFloat64) {
    LaunchKernel("fold", &FoldKernel<double>, geometry, context, args, count);
  } else {
    LaunchKernel("fold", &FoldKernel<float>, geometry, context, args, count);
  }
}

}  // namespace crosshatch::internal
