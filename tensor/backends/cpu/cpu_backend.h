// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_BACKENDS_CPU_CPU_BACKEND_H_
#define CROSSHATCH_TENSOR_BACKENDS_CPU_CPU_BACKEND_H_

#include <memory>

#include "crosshatch/tensor/allocator.h"
#include "crosshatch/tensor/device_backend.h"

namespace crosshatch {

/// Device::Cpu(). Its compute stream runs inline, unless it is adversarial;
/// each side stream is a queue with a worker.
const DeviceBackend& CpuBackend();

/// Caches blocks of the process's memory (caching_allocator.h, where
/// `adversarial` is explained).
std::unique_ptr<Allocator> MakeCpuAllocator(bool adversarial = false);

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_BACKENDS_CPU_CPU_BACKEND_H_
