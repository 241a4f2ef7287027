// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_CUDA_GEMM_H_
#define CROSSHATCH_TENSOR_KERNELS_CUDA_GEMM_H_

/// \file
/// Matrix products on the device by a library: cuBLASLt, or under emulation a
/// plain loop.

#include <cstdint>

#include "crosshatch/tensor/kernels/cuda/gemm_plan.h"
#include "crosshatch/tensor/stream.h"

namespace crosshatch::internal {

/// Bytes of workspace with which the library has its fastest algorithms.
extern const int64_t kCudaGemmWorkspaceBytes;

/// Computes the plan of PlanGemm. The library chooses an algorithm once for
/// each plan and device.
/// \returns whether the library has an algorithm; otherwise does nothing.
bool CudaGemm(const CudaGemmArgs& args, KernelContext& context);

/// Returns the number of such choices in this process.
int64_t CudaGemmChoices();

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_TENSOR_KERNELS_CUDA_GEMM_H_
