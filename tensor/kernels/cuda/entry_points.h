// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_CUDA_ENTRY_POINTS_H_
#define CROSSHATCH_TENSOR_KERNELS_CUDA_ENTRY_POINTS_H_

/// \file
/// The functions of CudaKernels(), each defined in the file of its family.

#include "crosshatch/tensor/kernels/kernel_table.h"

namespace crosshatch::internal {

CH_DECLARE_KERNELS(Cuda)

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_TENSOR_KERNELS_CUDA_ENTRY_POINTS_H_
