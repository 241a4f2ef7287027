// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/kernels/lane_kernels.h"

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/kernels/cpu/cpu_lane_kernels.h"

namespace crosshatch {

const LaneKernels& LaneKernelsOf(Device device) {
  CH_CHECK(device.is_cpu() || device.is_meta())
      << "no scans and sorts on " << device;
  return CpuLaneKernels();
}

}  // namespace crosshatch
