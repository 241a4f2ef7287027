// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_CPU_ENTRY_POINTS_H_
#define CROSSHATCH_TENSOR_KERNELS_CPU_ENTRY_POINTS_H_

/// \file
/// The functions of CpuKernels(), each defined in the file of its family.

#include "crosshatch/tensor/kernels/kernel_table.h"

namespace crosshatch::internal {

CH_DECLARE_KERNELS(Cpu)

}  // namespace crosshatch::internal

/// Defines CpuName in a file that is compiled once for each instruction set: it
/// calls Name, compiled for the best one that the machine has.
#define CH_CPU_KERNEL(Name)                                                  \
  HWY_EXPORT(Name);                                                          \
  void internal::Cpu##Name(const Name##Args& args, KernelContext& context) { \
    HWY_DYNAMIC_DISPATCH(Name)(args, context);                               \
  }

#endif  // CROSSHATCH_TENSOR_KERNELS_CPU_ENTRY_POINTS_H_
