// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_BACKENDS_CPU_CPU_BACKEND_H_
#define CROSSHATCH_TENSOR_BACKENDS_CPU_CPU_BACKEND_H_

#include "crosshatch/tensor/device_backend.h"

namespace crosshatch {

/// Device::Cpu(). Its compute stream runs inline, unless it is adversarial;
/// each side stream is a queue with a worker.
const DeviceBackend& CpuBackend();

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_BACKENDS_CPU_CPU_BACKEND_H_
