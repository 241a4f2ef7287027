// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_CUDA_WARPS_CUH_
#define CROSSHATCH_TENSOR_KERNELS_CUDA_WARPS_CUH_

/// \file
/// The position of a thread in the warps of a block of one dim.

#include "crosshatch/tensor/kernels/cuda/cuda_api.cuh"

namespace crosshatch::internal {

__device__ __forceinline__ int Warp() {
  return static_cast<int>(threadIdx.x) / kWarpThreads;
}
__device__ __forceinline__ int Warps() {
  return static_cast<int>(blockDim.x) / kWarpThreads;
}
__device__ __forceinline__ int LaneOfWarp() {
  return static_cast<int>(threadIdx.x) % kWarpThreads;
}

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_TENSOR_KERNELS_CUDA_WARPS_CUH_
