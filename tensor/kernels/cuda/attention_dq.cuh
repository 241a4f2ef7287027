// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_CUDA_ATTENTION_DQ_CUH_
#define CROSSHATCH_TENSOR_KERNELS_CUDA_ATTENTION_DQ_CUH_

/// \file
/// The order in which blocks of keys add to dq. For each tile of queries the
/// blocks of keys that it sees add one after another, by increasing key, so
/// that the sums are the same in every run. A warp adds to its own part of the
/// tile, and waits for the same warp of the block before.
///
/// Blocks number themselves when they start. A block waits only for blocks with
/// lower numbers, so those that it waits for run or have ended, whatever the
/// order in which the device starts blocks.

#include <cstdint>

#include "crosshatch/tensor/kernels/cuda/attention_mma.cuh"
#include "crosshatch/tensor/kernels/cuda/cuda_api.cuh"

namespace crosshatch::internal::attention {

/// Returns the number of the block in the order of starts. All threads call it.
/// \param count 0 when the kernel starts
__device__ inline unsigned NumberOfBlock(uint32_t* count) {
  CH_SHARED(number, unsigned);
  if (threadIdx.x == 0) number = atomicAdd(count, 1u);
  __syncthreads();
  return number;
}

/// Waits until `count` is `value`. Then the warp sees what was stored before
/// PostCount of that value.
__device__ __forceinline__ void AwaitCount(const uint32_t* count,
                                           uint32_t value) {
#if defined(CROSSHATCH_CUDA_EMULATION)
  // Blocks run one after another, so no other changes it.
  CH_CHECK_EQ(LoadGlobal<uint32_t>(count), value) << "dq out of order";
#else
  if (LaneOfWarp() == 0) {
    uint32_t found;
    for (;;) {
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];"
                   : "=r"(found)
                   : "l"(count)
                   : "memory");
      if (found == value) break;
      __nanosleep(20);
    }
  }
#endif
  __syncwarp();
}

/// Sets `count` after all stores of the warp.
__device__ __forceinline__ void PostCount(uint32_t* count, uint32_t value) {
  __syncwarp();
  if (LaneOfWarp() != 0) return;
#if defined(CROSSHATCH_CUDA_EMULATION)
  StoreGlobal(count, value);
#else
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(count), "r"(value)
               : "memory");
#endif
}

/// A warp's part of the sums of a tile, in the order of its lanes' elements.
template <int kCols>
struct DqPart {
  static constexpr int kWidth = kCols / 2;
  static constexpr int kFloats = kMmaRows * kWidth;
  /// Columns that registers hold at a time.
  static constexpr int kChunk = kWidth < 64 ? kWidth : 64;

  /// The first query of the warp in the tile, and its first column.
  static __device__ __forceinline__ int query() {
    return Warp() % 2 * kMmaRows;
  }
  static __device__ __forceinline__ int col() { return Warp() / 2 * kWidth; }

  /// sums += those in memory.
  static __device__ __forceinline__ void Add(const float* part, int chunk,
                                             MmaSums<kChunk>& sums) {
#pragma unroll
    for (int n = 0; n < kChunk / 8; ++n) {
      const auto old = LoadGlobal<Pack<float, 4>>(Of(part, chunk, n));
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[n][i] += old.values[i];
    }
  }
  static __device__ __forceinline__ void Store(float* part, int chunk,
                                               const MmaSums<kChunk>& sums) {
#pragma unroll
    for (int n = 0; n < kChunk / 8; ++n) {
      Pack<float, 4> all;
#pragma unroll
      for (int i = 0; i < 4; ++i) all.values[i] = sums[n][i];
      StoreGlobal(const_cast<float*>(Of(part, chunk, n)), all);
    }
  }

 private:
  static __device__ __forceinline__ const float* Of(const float* part,
                                                    int chunk, int n) {
    return part +
           4 * ((chunk * (kChunk / 8) + n) * kWarpThreads + LaneOfWarp());
  }
};

/// Stores 16 rows of dq from `row` on, in 16 bits, from column `col` on.
template <DType kDType, bool kVectors, int kWidth>
__device__ __forceinline__ void StoreDq(const MmaSums<kWidth>& sums,
                                        float factor, const HeadsOutput& dq,
                                        int64_t batch, int64_t head, int row,
                                        int64_t length, int col, int dim) {
  uint16_t* const data = static_cast<uint16_t*>(dq.data) +
                         batch * dq.batch_stride + head * dq.head_stride;
  const bool are_pairs =
      kVectors ||
      (reinterpret_cast<uintptr_t>(data) % 4 == 0 && dq.time_stride % 2 == 0);
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const int t = row + RowOf(i);
    if (t >= length) continue;
    uint16_t* const to_row = data + t * dq.time_stride;
#pragma unroll
    for (int n = 0; n < kWidth / 8; ++n) {
      const int d = col + ColOf(n, i);
      if (d >= dim) continue;
      const uint32_t pair =
          PairOf<kDType>(sums[n][i] * factor, sums[n][i + 1] * factor);
      if (are_pairs && d + 1 < dim) {
        StoreGlobal(to_row + d, pair);
      } else {
        StoreGlobal(to_row + d, static_cast<uint16_t>(pair));
        if (d + 1 < dim) {
          StoreGlobal(to_row + d + 1, static_cast<uint16_t>(pair >> 16));
        }
      }
    }
  }
}

}  // namespace crosshatch::internal::attention

#endif  // CROSSHATCH_TENSOR_KERNELS_CUDA_ATTENTION_DQ_CUH_
