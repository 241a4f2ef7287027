// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstdint>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/kernels/cuda/elementwise.cuh"
#include "crosshatch/tensor/kernels/cuda/entry_points.h"
#include "crosshatch/tensor/kernels/cuda/global_index.cuh"

namespace crosshatch::internal {
namespace {

/// The operands of the strided loop, in the order of out, are x and the global
/// index. The latter is never read; only its offsets count.
template <typename C, int N>
__global__ void __launch_bounds__(256)
    DropoutKernel(Strided<3> strided, int64_t first, uint64_t key,
                  uint64_t stream, float bound, C scale) {
  const int inner = strided.loop.ndim - 1;
  const int64_t row = strided.loop.sizes[inner];
  for (int64_t v = GlobalThread(); v < strided.vectors; v += GlobalThreads()) {
    int64_t offsets[3];
    const int64_t start = strided.Locate(v, offsets);
    const int64_t count = row - start < N ? row - start : N;
    C x[N];
    LoadVector(strided.data[1], strided.dtypes[1], offsets[1],
               strided.loop.strides[1][inner], count, x);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const int64_t element =
          first + offsets[0] + i * strided.loop.strides[0][inner];
      const bool kept = UniformOf(WordsOf(key, stream, element)[0]) >= bound;
      x[i] = kept ? x[i] * scale : C(0);
    }
    StoreVector<false>(strided.data[2], strided.dtypes[2], offsets[2], count,
                       x);
  }
}

}  // namespace

void CudaDropout(const DropoutArgs& args, KernelContext& context) {
  CH_CHECK(IsFloatingPoint(args.x.dtype))
      << "dropout kernel of " << Name(args.x.dtype);
  const Box box = MakeBox(args.shape, args.offsets, args.global_sizes);
  int64_t contiguous[kMaxKernelDims] = {};
  int64_t stride = 1;
  for (int d = args.shape.ndim - 1; d >= 0; --d) {
    contiguous[d] = stride;
    stride *= args.shape.sizes[d];
  }
  const StridedOperand operands[] = {{nullptr, args.x.dtype, box.steps},
                                     AsOperand(args.x),
                                     {args.out, args.x.dtype, contiguous}};
  const auto bound =
      static_cast<float>(std::ceil(args.p * 0x1.0p24) * 0x1.0p-24);
  const double scale = args.p < 1 ? 1 / (1 - args.p) : 0;
  // The global index needs no alignment: all of its strides except the inner
  // one may have any value.
  const auto launch = [&](auto zero, auto width) {
    using C = decltype(zero);
    Strided<3> strided = MakeStrided(args.shape, operands, 1);
    const StridedOperand memory[] = {operands[1], operands[1], operands[2]};
    const bool side_by_side =
        strided.loop.strides[0][strided.loop.ndim - 1] == 1;
    if constexpr (decltype(width)::value > 1) {
      const StridedLoop& loop = strided.loop;
      StridedLoop of_memory = loop;
      for (int d = 0; d < loop.ndim; ++d) {
        of_memory.strides[0][d] = loop.strides[1][d];
      }
      if (side_by_side && WidthOf(of_memory, memory, 3, width) == width) {
        strided.width = width;
        strided.vectors_per_row = (loop.inner() + width - 1) / width;
        strided.vectors = loop.rows() * strided.vectors_per_row;
        LaunchKernel("dropout", &DropoutKernel<C, width>,
                     GeometryOfItems(strided.vectors), context, strided,
                     box.first, args.key, args.stream, bound,
                     static_cast<C>(scale));
        return;
      }
    }
    LaunchKernel("dropout", &DropoutKernel<C, 1>,
                 GeometryOfItems(strided.vectors), context, strided, box.first,
                 args.key, args.stream, bound, static_cast<C>(scale));
  };
  if (args.x.dtype == DType::kFloat64) {
    launch(double{}, std::integral_constant<int, 2>());
  } else if (args.x.dtype == DType::kFloat32) {
    launch(float{}, std::integral_constant<int, 4>());
  } else {
    launch(float{}, std::integral_constant<int, 8>());
  }
}

}  // namespace crosshatch::internal
