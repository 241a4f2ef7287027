// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_CUDA_ARITHMETIC_CUH_
#define CROSSHATCH_TENSOR_KERNELS_CUDA_ARITHMETIC_CUH_

#include <cstdint>
#include <type_traits>

#include "crosshatch/tensor/kernels/cuda/cuda_api.cuh"

namespace crosshatch::internal {

/// \name Arithmetic that wraps for integers
/// @{
template <typename C>
__device__ __forceinline__ C Plus(C a, C b) {
  if constexpr (std::is_integral_v<C>) {
    return static_cast<C>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
  } else {
    return a + b;
  }
}
template <typename C>
__device__ __forceinline__ C Times(C a, C b) {
  if constexpr (std::is_integral_v<C>) {
    return static_cast<C>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
  } else {
    return a * b;
  }
}
template <typename C>
__device__ __forceinline__ C Negative(C a) {
  if constexpr (std::is_integral_v<C>) {
    return static_cast<C>(-static_cast<uint64_t>(a));
  } else {
    return -a;
  }
}
/// @}

/// NaN if either is.
template <typename C>
__device__ __forceinline__ C LargerOf(C a, C b) {
  return a != a || a > b ? a : b;
}
template <typename C>
__device__ __forceinline__ C SmallerOf(C a, C b) {
  return a != a || a < b ? a : b;
}

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_TENSOR_KERNELS_CUDA_ARITHMETIC_CUH_
