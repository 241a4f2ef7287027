// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/kernels/cuda/elementwise.cuh"
#include "crosshatch/tensor/kernels/cuda/entry_points.h"

namespace crosshatch::internal {
namespace {

/// Addresses that fit into a kernel's parameters.
constexpr int kMostSources = 256;

struct Sources {
  const void* data[kMostSources];
  int count;
  DType dtype;
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
                     int64_t elements, C scale) {
  const int64_t items = (elements + N - 1) / N;
  for (int64_t item = GlobalThread(); item < items; item += GlobalThreads()) {
    const int64_t first = item * N;
    const int64_t count = elements - first < N ? elements - first : N;
    C sum[N];
    LoadVector(sources.data[0], sources.dtype, first, 1, count, sum);
    for (int s = 1; s < sources.count; ++s) {
      C next[N];
      LoadVector(sources.data[s], sources.dtype, first, 1, count, next);
#pragma unroll
      for (int i = 0; i < N; ++i) sum[i] = Step(op, sum[i], next[i]);
    }
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (op == ReduceOp::kAvg) sum[i] /= static_cast<C>(sources.count);
      if constexpr (!std::is_integral_v<C>) sum[i] *= scale;
    }
    StoreVector<false>(out, out_dtype, first, count, sum);
  }
}

template <typename C, int N>
void Launch(const AccumulateRanksArgs& args, const Sources& sources,
            KernelContext& context) {
  const auto is_aligned = [&](const void* data, DType dtype) {
    return IsVectorAligned(data, dtype, 0, N);
  };
  const bool vectors = is_aligned(args.out, args.out_dtype) &&
                       std::all_of(sources.data, sources.data + sources.count,
                                   [&](const void* data) {
                                     return is_aligned(data, args.dtype);
                                   });
  const auto scale = static_cast<C>(args.scale);
  if (vectors) {
    LaunchKernel("accumulate_ranks", &AccumulateKernel<C, N>,
                 GeometryOfItems((args.count + N - 1) / N), context, args.op,
                 sources, args.out, args.out_dtype, args.count, scale);
  } else {
    LaunchKernel("accumulate_ranks", &AccumulateKernel<C, 1>,
                 GeometryOfItems(args.count), context, args.op, sources,
                 args.out, args.out_dtype, args.count, scale);
  }
}

}  // namespace

void CudaAccumulateRanks(const AccumulateRanksArgs& args,
                         KernelContext& context) {
  CH_CHECK(args.num_sources >= 1 && args.num_sources <= kMostSources)
      << "accumulate_ranks kernel: " << args.num_sources
      << " sources; there are 1 to " << kMostSources;
  Sources sources = {};
  sources.count = args.num_sources;
  sources.dtype = args.dtype;
  std::copy(args.sources, args.sources + args.num_sources, sources.data);
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

}  // namespace crosshatch::internal
