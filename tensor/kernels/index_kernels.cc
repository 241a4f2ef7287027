// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/kernels/index_kernels.h"

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/kernels/cpu/cpu_index_kernels.h"

namespace crosshatch {

const IndexKernels& IndexKernelsOf(Device device) {
  CH_CHECK(device.is_cpu() || device.is_meta())
      << "no gather, scatter and dropout on " << device;
  return CpuIndexKernels();
}

}  // namespace crosshatch
