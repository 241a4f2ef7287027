// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_CPU_ENTRY_POINTS_H_
#define CROSSHATCH_TENSOR_KERNELS_CPU_ENTRY_POINTS_H_

/// \file
/// The functions of CpuKernels(), each defined in the file of its family.

#include "crosshatch/tensor/kernels/kernel_table.h"

namespace crosshatch::internal {

CH_DECLARE_KERNELS(Cpu)

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_TENSOR_KERNELS_CPU_ENTRY_POINTS_H_
