// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_CUDA_CUDA_KERNELS_H_
#define CROSSHATCH_TENSOR_KERNELS_CUDA_CUDA_KERNELS_H_

/// \file
/// The kernels of CUDA devices.

#include "crosshatch/tensor/kernels/kernel_table.h"

namespace crosshatch {

/// They issue to the stream of the context that they are given, which is an
/// internal::CudaKernelContext (cuda_context.h), and return. Matrix products
/// are cuBLASLt's, sorts CUB's.
const KernelTable& CudaKernels();

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_KERNELS_CUDA_CUDA_KERNELS_H_
