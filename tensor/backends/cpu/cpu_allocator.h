// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_BACKENDS_CPU_CPU_ALLOCATOR_H_
#define CROSSHATCH_TENSOR_BACKENDS_CPU_CPU_ALLOCATOR_H_

#include <memory>

#include "crosshatch/tensor/allocator.h"

namespace crosshatch {

/// Caches blocks of the process's memory (caching_allocator.h, where
/// `adversarial` is explained).
std::unique_ptr<Allocator> MakeCpuAllocator(bool adversarial = false);

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_BACKENDS_CPU_CPU_ALLOCATOR_H_
