// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_CUDA_GEMM_EMULATED_H_
#define CROSSHATCH_TENSOR_KERNELS_CUDA_GEMM_EMULATED_H_

#include "crosshatch/tensor/kernels/cuda/gemm_plan.h"

namespace crosshatch::internal {

/// Makes the emulated library have no algorithm for plans of which `lacks`
/// returns true; null: it has all.
void SetPlansWithoutAlgorithm(bool (*lacks)(const GemmPlan&));

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_TENSOR_KERNELS_CUDA_GEMM_EMULATED_H_
