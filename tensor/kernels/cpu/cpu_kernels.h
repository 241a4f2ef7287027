// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_CPU_CPU_KERNELS_H_
#define CROSSHATCH_TENSOR_KERNELS_CPU_CPU_KERNELS_H_

/// \file
/// The kernels of the CPU.

#include "crosshatch/tensor/kernels/kernel_table.h"

namespace crosshatch {

/// Highway kernels that pick the instruction set at run time; matrix products
/// by oneDNN or Eigen (--//third_party:blas). They run on the pool of the
/// KernelContext they are given, or on the calling thread where it is null.
const KernelTable& CpuKernels();

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_KERNELS_CPU_CPU_KERNELS_H_
