// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_LANE_KERNELS_H_
#define CROSSHATCH_TENSOR_KERNELS_LANE_KERNELS_H_

/// \file
/// The table of scans and sorts of each device.

#include "crosshatch/tensor/device.h"
#include "crosshatch/tensor/kernels/lane_kernel_table.h"

namespace crosshatch {

/// A dry run launches none of them, and asks those of the CPU how much memory
/// they take.
const LaneKernels& LaneKernelsOf(Device device);

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_KERNELS_LANE_KERNELS_H_
