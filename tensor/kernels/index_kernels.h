// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_INDEX_KERNELS_H_
#define CROSSHATCH_TENSOR_KERNELS_INDEX_KERNELS_H_

/// \file
/// The table of kernels that go by index, for each device.

#include "crosshatch/tensor/device.h"
#include "crosshatch/tensor/kernels/index_kernel_table.h"

namespace crosshatch {

/// A dry run launches none of them.
const IndexKernels& IndexKernelsOf(Device device);

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_KERNELS_INDEX_KERNELS_H_
