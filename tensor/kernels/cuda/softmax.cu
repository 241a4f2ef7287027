// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstdint>
#include <limits>

#include "crosshatch/tensor/kernels/cuda/block_reduce.cuh"
#include "crosshatch/tensor/kernels/cuda/entry_points.h"
#include "crosshatch/tensor/kernels/cuda/row.cuh"

namespace crosshatch::internal {
namespace {

template <typename C, int N>
__global__ void __launch_bounds__(512) SoftmaxKernel(SoftmaxArgs args) {
  using Values = C[1][N];
  for (int64_t r = blockIdx.x; r < args.rows; r += gridDim.x) {
    CachedRows<C, N, kKeptVectors, 1> x({{args.x.data, r * args.x.row_stride}},
                                        args.dtype, args.cols);
    C max = -std::numeric_limits<C>::infinity();
    x.First([&](const Values& values, Columns columns) {
      for (int i = 0; i < columns.count; ++i) max = LargerOf(max, values[0][i]);
    });
    max = BlockMax(max);
    RunningSum<C> sums;
    x.Again([&](const Values& values, Columns columns) {
      for (int i = 0; i < columns.count; ++i) {
        sums.Add(std::exp(values[0][i] - max));
      }
    });
    const C sum = BlockSum(sums.Sum());
    const C log_sum = std::log(sum);
    x.Again([&](const Values& values, Columns columns) {
      C out[N];
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const C below = values[0][i] - max;
        out[i] = args.log ? below - log_sum : std::exp(below) / sum;
      }
      StoreVector<false>(args.out.data, args.dtype,
                         r * args.out.row_stride + columns.col, columns.count,
                         out);
    });
  }
}

template <typename C, int N>
__global__ void __launch_bounds__(512)
    SoftmaxBackwardKernel(SoftmaxBackwardArgs args) {
  using Values = C[2][N];  // y and its gradient.
  for (int64_t r = blockIdx.x; r < args.rows; r += gridDim.x) {
    CachedRows<C, N, kKeptVectors, 2> rows(
        {{args.y.data, r * args.y.row_stride},
         {args.grad.data, r * args.grad.row_stride}},
        args.dtype, args.cols);
    RunningSum<C> sums;
    rows.First([&](const Values& values, Columns columns) {
      for (int i = 0; i < columns.count; ++i) {
        sums.Add(args.log ? values[1][i] : values[0][i] * values[1][i]);
      }
    });
    const C sum = BlockSum(sums.Sum());
    rows.Again([&](const Values& values, Columns columns) {
      C dx[N];
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const C y = values[0][i];
        const C grad = values[1][i];
        dx[i] = args.log ? grad - std::exp(y) * sum : (grad - sum) * y;
      }
      StoreVector<false>(args.dx.data, args.dtype,
                         r * args.dx.row_stride + columns.col, columns.count,
                         dx);
    });
  }
}

}  // namespace

void CudaSoftmax(const SoftmaxArgs& args, KernelContext& context) {
  if (args.cols == 0) return;
  const bool vectors =
      HasVectors(args.x, args.dtype) && HasVectors(args.out, args.dtype);
  DispatchRows(args.dtype, vectors, [&](auto zero, auto width) {
    LaunchKernel("softmax",
                 &SoftmaxKernel<decltype(zero), decltype(width)::value>,
                 GeometryOfVectors(args.rows, args.cols, width, kKeptVectors),
                 context, args);
  });
}

void CudaSoftmaxBackward(const SoftmaxBackwardArgs& args,
                         KernelContext& context) {
  if (args.cols == 0) return;
  const bool vectors = HasVectors(args.y, args.dtype) &&
                       HasVectors(args.grad, args.dtype) &&
                       HasVectors(args.dx, args.dtype);
  DispatchRows(args.dtype, vectors, [&](auto zero, auto width) {
    LaunchKernel("softmax_backward",
                 &SoftmaxBackwardKernel<decltype(zero), decltype(width)::value>,
                 GeometryOfVectors(args.rows, args.cols, width, kKeptVectors),
                 context, args);
  });
}

}  // namespace crosshatch::internal
