// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_BACKENDS_CPU_CPU_BACKEND_H_
#define CROSSHATCH_TENSOR_BACKENDS_CPU_CPU_BACKEND_H_

#include <memory>

#include "crosshatch/tensor/allocator.h"
#include "crosshatch/tensor/device_backend.h"

namespace crosshatch {

/// Returns the backend of Device::Cpu(). Its compute stream runs inline, unless
/// it is adversarial. Each side stream is a queue with a worker.
const DeviceBackend& CpuBackend();

/// Returns an allocator that caches blocks of the process's memory
/// (allocator.h, which explains `adversarial`).
std::unique_ptr<Allocator> MakeCpuAllocator(bool adversarial = false);

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_BACKENDS_CPU_CPU_BACKEND_H_
