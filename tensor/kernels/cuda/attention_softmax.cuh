// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_CUDA_ATTENTION_SOFTMAX_CUH_
#define CROSSHATCH_TENSOR_KERNELS_CUDA_ATTENTION_SOFTMAX_CUH_

/// \file
/// The softmax of a warp's scores, a tile of keys at a time
/// (attention_mma.cuh). Exponentials are of base 2, of one instruction.

#include <cmath>
#include <limits>

#include "crosshatch/tensor/kernels/cuda/arithmetic.cuh"
#include "crosshatch/tensor/kernels/cuda/attention_mma.cuh"

namespace crosshatch::internal::attention {

inline constexpr float kLog2E = 1.4426950408889634f;

/// Returns 2^x to 2 units in the last place; 0 below the normal numbers.
__device__ __forceinline__ float Exp2(float x) {
#if defined(CROSSHATCH_CUDA_EMULATION)
  return std::exp2(x);
#else
  float value;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(value) : "f"(x));
  return value;
#endif
}

/// NaN if either is.
__device__ __forceinline__ float MaxOf(float a, float b) {
#if defined(CROSSHATCH_CUDA_EMULATION)
  return LargerOf(a, b);
#else
  float value;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(value) : "f"(a), "f"(b));
  return value;
#endif
}

/// Combines the values of the four lanes of a row.
template <typename Combine>
__device__ __forceinline__ float OfRow(float value, Combine combine) {
  value = combine(value, __shfl_xor_sync(kFullWarp, value, 1));
  return combine(value, __shfl_xor_sync(kFullWarp, value, 2));
}

/// Of the two rows of a lane: the largest score so far, and the sum of the
/// exponentials relative to it over the lane's own columns.
struct RowSoftmax {
  float max[2] = {-std::numeric_limits<float>::infinity(),
                  -std::numeric_limits<float>::infinity()};
  float sum[2] = {};

  /// Converts scores to weights exp((score - max) unit), and rescales `sums`,
  /// which were weighted relative to the previous maximum.
  /// \param unit_log2e the factor of scores times log2(e), positive
  template <int kKeys, int kCols>
  __device__ __forceinline__ void Add(float unit_log2e, MmaSums<kKeys>& scores,
                                      MmaSums<kCols>& sums) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float largest = max[half];
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
        largest = MaxOf(largest, scores[n][2 * half]);
        largest = MaxOf(largest, scores[n][2 * half + 1]);
      }
      largest = OfRow(largest, [](float a, float b) { return MaxOf(a, b); });
      // No difference of infinities if all scores are -inf.
      const float base = largest == -std::numeric_limits<float>::infinity()
                             ? 0.0f
                             : largest * unit_log2e;
      const float rescale = Exp2(max[half] * unit_log2e - base);
      max[half] = largest;
      sum[half] *= rescale;
#pragma unroll
      for (int n = 0; n < kCols / 8; ++n) {
        sums[n][2 * half] *= rescale;
        sums[n][2 * half + 1] *= rescale;
      }
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i) {
          scores[n][i] = Exp2(scores[n][i] * unit_log2e - base);
          sum[half] += scores[n][i];
        }
      }
    }
  }
};

}  // namespace crosshatch::internal::attention

#endif  // CROSSHATCH_TENSOR_KERNELS_CUDA_ATTENTION_SOFTMAX_CUH_
