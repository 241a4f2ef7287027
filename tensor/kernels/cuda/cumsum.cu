// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <type_traits>

#include "crosshatch/tensor/kernels/cuda/elementwise.cuh"
#include "crosshatch/tensor/kernels/cuda/entry_points.h"

namespace crosshatch::internal {
namespace {

/// The summed dim, from its end if `reverse`.
struct Along {
  int64_t length;
  int64_t in_stride;
  int64_t out_stride;
  bool reverse;

  __device__ int64_t At(int64_t i) const {
    return reverse ? length - 1 - i : i;
  }
};

/// One thread per lane, for lanes that are adjacent or short.
template <typename C>
__global__ void __launch_bounds__(256)
    LaneKernel(Strided<2> strided, Along along) {
  for (int64_t v = GlobalThread(); v < strided.vectors; v += GlobalThreads()) {
    int64_t offsets[2];
    strided.Locate(v, offsets);
    C sum = C(0);
    for (int64_t i = 0; i < along.length; ++i) {
      const int64_t at = along.At(i);
      sum = Plus(sum, LoadElement<C>(strided.data[0], strided.dtypes[0],
                                     offsets[0] + at * along.in_stride));
      StoreElement(strided.data[1], strided.dtypes[1],
                   offsets[1] + at * along.out_stride, sum);
    }
  }
}

/// Returns the sum of `value` over the threads up to the calling one; sets
/// `total` to the sum over all.
template <typename C>
__device__ C BlockScan(C value, C& total) {
  CH_SHARED(of_warps, C[kMaxBlockThreads / kWarpThreads]);
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  const int warp = static_cast<int>(threadIdx.x) / kWarpThreads;
  const int warps = static_cast<int>(blockDim.x) / kWarpThreads;
#pragma unroll
  for (int by = 1; by < kWarpThreads; by *= 2) {
    const C before =
        __shfl_up_sync(kFullWarp, value, static_cast<unsigned>(by));
    if (lane >= by) value = Plus(before, value);
  }
  if (lane == kWarpThreads - 1) of_warps[warp] = value;
  __syncthreads();
  C before = C(0);
  total = C(0);
  for (int w = 0; w < warps; ++w) {
    if (w == warp) before = total;
    total = Plus(total, of_warps[w]);
  }
  __syncthreads();
  return Plus(before, value);
}

/// One block per lane; each iteration takes one element per thread.
template <typename C>
__global__ void __launch_bounds__(256)
    BlockKernel(Strided<2> strided, Along along) {
  for (int64_t v = blockIdx.x; v < strided.vectors; v += gridDim.x) {
    int64_t offsets[2];
    strided.Locate(v, offsets);
    C sum = C(0);
    for (int64_t first = 0; first < along.length; first += blockDim.x) {
      const int64_t i = first + threadIdx.x;
      const bool inside = i < along.length;
      const int64_t at = along.At(inside ? i : 0);
      const C value = inside
                          ? LoadElement<C>(strided.data[0], strided.dtypes[0],
                                           offsets[0] + at * along.in_stride)
                          : C(0);
      C total;
      const C scanned = Plus(sum, BlockScan(value, total));
      if (inside) {
        StoreElement(strided.data[1], strided.dtypes[1],
                     offsets[1] + at * along.out_stride, scanned);
      }
      sum = Plus(sum, total);
    }
  }
}

// Longer lanes get a block if they are contiguous, or if there are too few to
// fill a device.
constexpr int64_t kShort = 64;
constexpr int64_t kManyLanes = int64_t{1} << 15;

}  // namespace

void CudaCumSum(const CumSumArgs& args, KernelContext& context) {
  KernelShape lanes = args.shape;
  const int64_t length = lanes.sizes[args.dim];
  if (length == 0) return;
  lanes.sizes[args.dim] = 1;
  const auto strided =
      MakeStrided(lanes, {AsOperand(args.in), AsOperand(args.out)}, 1);
  const Along along = {length, args.in.strides[args.dim],
                       args.out.strides[args.dim], args.reverse};
  const bool by_block =
      length > kShort && (along.in_stride == 1 || strided.vectors < kManyLanes);
  const auto launch = [&](auto zero) {
    using C = decltype(zero);
    if (by_block) {
      LaunchGeometry geometry = GeometryOfRows(strided.vectors, length);
      if (geometry.threads > 256) geometry.threads = 256;
      LaunchKernel("cumsum", &BlockKernel<C>, geometry, context, strided,
                   along);
    } else {
      LaunchKernel("cumsum_lanes", &LaneKernel<C>,
                   GeometryOfItems(strided.vectors), context, strided, along);
    }
  };
  if (IsFloatingPoint(args.in.dtype)) {
    launch(double{});
  } else {
    launch(int64_t{});
  }
}

}  // namespace crosshatch::internal
