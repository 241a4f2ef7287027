// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstdint>
#include <limits>

#include "crosshatch/tensor/kernels/cuda/block_reduce.cuh"
#include "crosshatch/tensor/kernels/cuda/complain.cuh"
#include "crosshatch/tensor/kernels/cuda/entry_points.h"
#include "crosshatch/tensor/kernels/cuda/row.cuh"

namespace crosshatch::internal {
namespace {

/// The sum of exp(value - max) in one pass over the values, where `max` is the
/// largest so far. A larger value rescales the sum.
template <typename C>
struct ScaledSum {
  C max = -std::numeric_limits<C>::infinity();
  C sum = C(0);

  template <int N>
  __device__ __forceinline__ void Add(const C (&values)[N], int64_t count) {
    C largest = max;
    for (int i = 0; i < count; ++i) largest = LargerOf(largest, values[i]);
    // If all are -inf, the exponentials are 0.
    if (largest == -std::numeric_limits<C>::infinity()) return;
    if (largest != max) sum *= std::exp(max - largest);
    max = largest;
    C terms = C(0);
    for (int i = 0; i < count; ++i) terms += std::exp(values[i] - max);
    sum += terms;
  }
  /// Returns the sum of exp(value - larger).
  __device__ __forceinline__ C Below(C larger) const {
    return sum == C(0) ? C(0) : sum * std::exp(max - larger);
  }
};

template <typename C, int N>
__global__ void __launch_bounds__(512)
    CrossEntropyKernel(CrossEntropyArgs args, Complainer complainer) {
  using Values = C[1][N];
  const DType statistics = StatisticsDType(args.dtype);
  constexpr C kNothing = -std::numeric_limits<C>::infinity();
  for (int64_t r = blockIdx.x; r < args.rows; r += gridDim.x) {
    CachedRows<C, N, kKeptVectors, 1> x(
        {{args.logits.data, r * args.logits.row_stride}}, args.dtype,
        args.cols);
    C max = kNothing;
    x.FirstKept([&](int, const Values& values, Columns columns) {
      for (int i = 0; i < columns.count; ++i) max = LargerOf(max, values[0][i]);
    });
    ScaledSum<C> of_others;
    x.AgainOthers([&](const Values& values, Columns columns) {
      of_others.Add(values[0], columns.count);
    });
    max = BlockMax(LargerOf(max, of_others.max));
    RunningSum<C> sums;
    x.AgainKept([&](int, const Values& values, Columns columns) {
      for (int i = 0; i < columns.count; ++i) {
        sums.Add(std::exp(values[0][i] - max));
      }
    });
    const C sum = BlockSum(sums.Sum() + of_others.Below(max));
    if (threadIdx.x != 0) continue;
    const C logsumexp = max == kNothing ? kNothing : max + std::log(sum);
    const int64_t target = LoadIndex(args.targets.data, args.targets.dtype, r);
    C loss = C(0);
    if (target != args.targets.ignore_index) {
      if (target < 0 || target >= args.cols) {
        Complain(complainer, target, r, args.cols);
      } else {
        loss = logsumexp - LoadElement<C>(args.logits.data, args.dtype,
                                          r * args.logits.row_stride + target);
      }
    }
    StoreElement(args.logsumexp, statistics, r, logsumexp);
    StoreElement(args.loss, statistics, r, loss);
  }
}

template <typename C, int N>
__global__ void __launch_bounds__(512)
    CrossEntropyShardKernel(CrossEntropyShardArgs args) {
  using Values = C[1][N];
  const DType statistics = StatisticsDType(args.dtype);
  for (int64_t r = blockIdx.x; r < args.rows; r += gridDim.x) {
    CachedRows<C, N, 1, 1> x({{args.logits.data, r * args.logits.row_stride}},
                             args.dtype, args.cols);
    const C max = LoadElement<C>(args.row_max, statistics, r);
    RunningSum<C> sums;
    x.First([&](const Values& values, Columns columns) {
      for (int i = 0; i < columns.count; ++i) {
        sums.Add(std::exp(values[0][i] - max));
      }
    });
    const C sum = BlockSum(sums.Sum());
    if (threadIdx.x != 0) continue;
    const int64_t target = LoadIndex(args.targets.data, args.targets.dtype, r);
    const int64_t col = target - args.first;
    const bool here =
        target != args.targets.ignore_index && col >= 0 && col < args.cols;
    StoreElement(args.sum_exp, statistics, r, sum);
    StoreElement(args.picked, statistics, r,
                 here ? LoadElement<C>(args.logits.data, args.dtype,
                                       r * args.logits.row_stride + col)
                      : C(0));
  }
}

template <typename C, int N>
__global__ void __launch_bounds__(512)
    CrossEntropyBackwardKernel(CrossEntropyBackwardArgs args) {
  using Values = C[1][N];
  const DType statistics = StatisticsDType(args.dtype);
  for (int64_t r = blockIdx.x; r < args.rows; r += gridDim.x) {
    CachedRows<C, N, 1, 1> x({{args.logits.data, r * args.logits.row_stride}},
                             args.dtype, args.cols);
    const C logsumexp = LoadElement<C>(args.logsumexp, statistics, r);
    const C grad = LoadElement<C>(args.grad, statistics, r * args.grad_stride);
    const int64_t target = LoadIndex(args.targets.data, args.targets.dtype, r);
    const bool ignored = target == args.targets.ignore_index;
    x.First([&](const Values& values, Columns columns) {
      C out[N];
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const bool picked = args.first + columns.col + i == target;
        out[i] = ignored ? C(0)
                         : (std::exp(values[0][i] - logsumexp) -
                            (picked ? C(1) : C(0))) *
                               grad;
      }
      StoreVector<false>(args.dlogits.data, args.dtype,
                         r * args.dlogits.row_stride + columns.col,
                         columns.count, out);
    });
  }
}

}  // namespace

void CudaCrossEntropy(const CrossEntropyArgs& args, KernelContext& context) {
  const Complainer complainer = ComplainerOf(context, ComplaintKind::kTarget);
  DispatchRows(
      args.dtype, HasVectors(args.logits, args.dtype),
      [&](auto zero, auto width) {
        LaunchKernel(
            "cross_entropy",
            &CrossEntropyKernel<decltype(zero), decltype(width)::value>,
            GeometryOfVectors(args.rows, args.cols, width, kKeptVectors),
            context, args, complainer);
      });
}

void CudaCrossEntropyShard(const CrossEntropyShardArgs& args,
                           KernelContext& context) {
  DispatchRows(
      args.dtype, HasVectors(args.logits, args.dtype),
      [&](auto zero, auto width) {
        LaunchKernel(
            "cross_entropy_shard",
            &CrossEntropyShardKernel<decltype(zero), decltype(width)::value>,
            GeometryOfVectors(args.rows, args.cols, width, kKeptVectors),
            context, args);
      });
}

void CudaCrossEntropyBackward(const CrossEntropyBackwardArgs& args,
                              KernelContext& context) {
  if (args.cols == 0) return;
  const bool vectors = HasVectors(args.logits, args.dtype) &&
                       HasVectors(args.dlogits, args.dtype);
  DispatchRows(args.dtype, vectors, [&](auto zero, auto width) {
    LaunchKernel(
        "cross_entropy_backward",
        &CrossEntropyBackwardKernel<decltype(zero), decltype(width)::value>,
        GeometryOfVectors(args.rows, args.cols, width, kKeptVectors), context,
        args);
  });
}

}  // namespace crosshatch::internal
