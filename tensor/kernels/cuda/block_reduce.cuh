// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_CUDA_BLOCK_REDUCE_CUH_
#define CROSSHATCH_TENSOR_KERNELS_CUDA_BLOCK_REDUCE_CUH_

/// \file
/// Reductions over the threads of a block, by pairs, in an order that depends
/// on the block's size alone. Blocks are whole warps, a power of two of them.

#include "crosshatch/tensor/kernels/cuda/arithmetic.cuh"
#include "crosshatch/tensor/kernels/cuda/cuda_api.cuh"

namespace crosshatch::internal {

/// `value` may be a struct of up to 16 bytes: shuffled by halves.
template <typename V>
__device__ __forceinline__ V ShuffleXor(const V& value, int lanes) {
  if constexpr (sizeof(V) <= 8) {
    return __shfl_xor_sync(kFullWarp, value, lanes);
  } else {
    return V{__shfl_xor_sync(kFullWarp, value.first, lanes),
             __shfl_xor_sync(kFullWarp, value.second, lanes)};
  }
}

/// Returns combine(all lanes) on each lane; combine is commutative.
template <typename V, typename Combine>
__device__ __forceinline__ V WarpReduce(V value, Combine combine) {
#pragma unroll
  for (int lanes = kWarpThreads / 2; lanes > 0; lanes /= 2) {
    value = combine(value, ShuffleXor(value, lanes));
  }
  return value;
}

/// Returns combine(all threads of a block of one dim) on each thread. All of
/// them call it.
template <typename V, typename Combine>
__device__ __forceinline__ V BlockReduce(V value, Combine combine) {
  value = WarpReduce(value, combine);
  const int warps = static_cast<int>(blockDim.x) / kWarpThreads;
  if (warps == 1) return value;
  CH_SHARED(of_warps, V[kMaxBlockThreads / kWarpThreads]);
  const int warp = static_cast<int>(threadIdx.x) / kWarpThreads;
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  if (lane == 0) of_warps[warp] = value;
  __syncthreads();
  // Each warp adds them separately: a power of two, which the lanes repeat.
  value = of_warps[lane & (warps - 1)];
  for (int lanes = warps / 2; lanes > 0; lanes /= 2) {
    value = combine(value, ShuffleXor(value, lanes));
  }
  // Before the next call writes there.
  __syncthreads();
  return value;
}

template <typename C>
__device__ __forceinline__ C BlockSum(C value) {
  return BlockReduce(value, [](C a, C b) { return a + b; });
}

template <typename C>
__device__ __forceinline__ C BlockMax(C value) {
  return BlockReduce(value, [](C a, C b) { return LargerOf(a, b); });
}

/// A sum of consecutive terms, in which a term is added at most 3 * 16 times
/// for up to 4096 of them.
template <typename C>
class RunningSum {
 public:
  __device__ __forceinline__ void Add(C term) {
    run_ += term;
    if (++count_ % 16 == 0) {
      runs_ += run_;
      run_ = C(0);
      if (count_ % 256 == 0) {
        total_ += runs_;
        runs_ = C(0);
      }
    }
  }
  __device__ __forceinline__ C Sum() const { return run_ + (runs_ + total_); }

 private:
  C run_ = C(0);
  C runs_ = C(0);
  C total_ = C(0);
  int count_ = 0;
};

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_TENSOR_KERNELS_CUDA_BLOCK_REDUCE_CUH_
