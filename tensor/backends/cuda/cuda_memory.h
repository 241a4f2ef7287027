// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_BACKENDS_CUDA_CUDA_MEMORY_H_
#define CROSSHATCH_TENSOR_BACKENDS_CUDA_CUDA_MEMORY_H_

#include <memory>

#include "crosshatch/tensor/allocator.h"

namespace crosshatch::internal {

std::unique_ptr<MemorySource> MakeCudaMemory(int device);

/// Returns pinned host memory that all devices' kernels can access.
std::unique_ptr<MemorySource> MakePinnedMemory(int device);

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_TENSOR_BACKENDS_CUDA_CUDA_MEMORY_H_
