// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_CPU_ENTRY_POINTS_H_
#define CROSSHATCH_TENSOR_KERNELS_CPU_ENTRY_POINTS_H_

/// \file
/// The functions of CpuKernels(), each defined in the file of its family.

#include "crosshatch/tensor/kernels/cpu/element.h"
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

/// Define Name, which calls NameAs<T>(args, context) with the type T that
/// elements of `dtype`, a member of `args`, are computed in: float or double,
/// or any.
#define CH_FLOAT_KERNEL(Name, name, dtype)                         \
  void Name(const Name##Args& args, KernelContext& context) {      \
    internal::DispatchFloat(dtype, name, [&](auto zero) HWY_ATTR { \
      Name##As<decltype(zero)>(args, context);                     \
    });                                                            \
  }
#define CH_COMPUTE_KERNEL(Name, dtype)                         \
  void Name(const Name##Args& args, KernelContext& context) {  \
    internal::DispatchCompute(dtype, [&](auto zero) HWY_ATTR { \
      Name##As<decltype(zero)>(args, context);                 \
    });                                                        \
  }

#endif  // CROSSHATCH_TENSOR_KERNELS_CPU_ENTRY_POINTS_H_
