// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/kernels/accumulate_runs.h"
#include "crosshatch/tensor/kernels/cuda/elementwise.cuh"
#include "crosshatch/tensor/kernels/cuda/entry_points.h"

namespace crosshatch::internal {
namespace {

/// Addresses and strides that fit into a kernel's parameters.
constexpr int kMostSources = 128;

struct Sources {
  const void* data[kMostSources];
  /// Elements from one run to the next.
  int64_t strides[kMostSources];
  int count;
  DType dtype;
  /// The dtype of data[0], which may be an intermediate sum.
  DType first_dtype;
  /// The divisor of the final sum; 0: none.
  int divisor;
};

template <typename C>
__device__ __forceinline__ C Step(ReduceOp op, C a, C b) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg:
      return Plus(a, b);
    case ReduceOp::kProduct:
      return Times(a, b);
    case ReduceOp::kMin:
      return SmallerOf(a, b);
    case ReduceOp::kMax:
      return LargerOf(a, b);
  }
  return a;
}

template <typename C, int N>
__global__ void __launch_bounds__(256)
    AccumulateKernel(ReduceOp op, Sources sources, void* out, DType out_dtype,
                     int64_t elements, int64_t runs, int64_t out_stride,
                     C scale) {
  const int64_t items_of_run = (elements + N - 1) / N;
  const int64_t items = runs * items_of_run;
  for (int64_t item = GlobalThread(); item < items; item += GlobalThreads()) {
    const int64_t run = item / items_of_run;
    const int64_t first = item % items_of_run * N;
    const int64_t count = elements - first < N ? elements - first : N;
    C sum[N];
    LoadVector(sources.data[0], sources.first_dtype,
               run * sources.strides[0] + first, 1, count, sum);
    for (int s = 1; s < sources.count; ++s) {
      C next[N];
      LoadVector(sources.data[s], sources.dtype,
                 run * sources.strides[s] + first, 1, count, next);
#pragma unroll
      for (int i = 0; i < N; ++i) sum[i] = Step(op, sum[i], next[i]);
    }
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (sources.divisor != 0) sum[i] /= static_cast<C>(sources.divisor);
      if constexpr (!std::is_integral_v<C>) sum[i] *= scale;
    }
    StoreVector<false>(out, out_dtype, run * out_stride + first, count, sum);
  }
}

template <typename C, int N>
void Launch(const AccumulateRanksArgs& args, const Sources& sources,
            KernelContext& context) {
  bool vectors = IsVectorAligned(args.out, args.out_dtype, args.out_stride, N);
  for (int s = 0; s < sources.count; ++s) {
    vectors =
        vectors && IsVectorAligned(sources.data[s],
                                   s == 0 ? sources.first_dtype : args.dtype,
                                   sources.strides[s], N);
  }
  const auto scale = static_cast<C>(args.scale);
  if (vectors) {
    LaunchKernel("accumulate_ranks", &AccumulateKernel<C, N>,
                 GeometryOfItems(args.runs * ((args.count + N - 1) / N)),
                 context, args.op, sources, args.out, args.out_dtype,
                 args.count, args.runs, args.out_stride, scale);
  } else {
    LaunchKernel("accumulate_ranks", &AccumulateKernel<C, 1>,
                 GeometryOfItems(args.runs * args.count), context, args.op,
                 sources, args.out, args.out_dtype, args.count, args.runs,
                 args.out_stride, scale);
  }
}

/// Adds as many sources as one kernel's parameters hold.
void Accumulate(const AccumulateRanksArgs& args, const Sources& sources,
                KernelContext& context) {
  if (!IsFloatingPoint(args.dtype)) {
    Launch<int64_t, 2>(args, sources, context);
  } else if (args.dtype == DType::kFloat64) {
    Launch<double, 2>(args, sources, context);
  } else if (args.out_dtype == DType::kFloat32) {
    Launch<float, 4>(args, sources, context);
  } else {
    Launch<float, 8>(args, sources, context);
  }
}

DType SumDType(DType dtype) {
  if (!IsFloatingPoint(dtype)) return DType::kInt64;
  return StatisticsDType(dtype);
}

/// Accumulates one run from more sources than a kernel's parameters hold: each
/// kernel passes its unrounded sum to the next as first source.
void AccumulateInTurns(const AccumulateRanksArgs& args,
                       KernelContext& context) {
  const DType sum_dtype = SumDType(args.dtype);
  void* const partial = CudaContextOf(context).scratch;
  const int64_t most = kScratchBytes / SizeOf(sum_dtype);
  for (int64_t begin = 0; begin < args.count; begin += most) {
    const int64_t count = std::min(most, args.count - begin);
    for (int next = 0; next < args.num_sources;) {
      Sources sources = {};
      sources.dtype = sources.first_dtype = args.dtype;
      if (next > 0) {
        sources.data[sources.count++] = partial;
        sources.first_dtype = sum_dtype;
      }
      while (sources.count < kMostSources && next < args.num_sources) {
        sources.data[sources.count++] =
            static_cast<const std::byte*>(args.sources[next++]) +
            begin * SizeOf(args.dtype);
      }
      AccumulateRanksArgs turn = args;
      turn.count = count;
      if (next < args.num_sources) {
        turn.out = partial;
        turn.out_dtype = sum_dtype;
        turn.scale = 1;
      } else {
        turn.out =
            static_cast<std::byte*>(args.out) + begin * SizeOf(args.out_dtype);
        sources.divisor = args.op == ReduceOp::kAvg ? args.num_sources : 0;
      }
      Accumulate(turn, sources, context);
    }
  }
}

}  // namespace

void CudaAccumulateRanks(const AccumulateRanksArgs& args,
                         KernelContext& context) {
  CH_CHECK(args.num_sources >= 1)
      << "accumulate_ranks kernel: " << args.num_sources << " sources";
  if (args.num_sources > kMostSources) {
    ForEachRun(args, [&](const AccumulateRanksArgs& run) {
      AccumulateInTurns(run, context);
    });
    return;
  }
  Sources sources = {};
  sources.count = args.num_sources;
  sources.dtype = sources.first_dtype = args.dtype;
  sources.divisor = args.op == ReduceOp::kAvg ? args.num_sources : 0;
  for (int s = 0; s < args.num_sources; ++s) {
    sources.data[s] = args.sources[s];
    if (args.runs > 1) sources.strides[s] = args.source_strides[s];
  }
  Accumulate(args, sources, context);
}

}  // namespace crosshatch::internal
