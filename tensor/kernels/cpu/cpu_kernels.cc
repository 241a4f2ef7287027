// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/kernels/cpu/cpu_kernels.h"

#include "crosshatch/tensor/kernels/cpu/entry_points.h"

namespace crosshatch {

const KernelTable& CpuKernels() {
  static constexpr KernelTable kTable = CH_KERNEL_TABLE(Cpu);
  return kTable;
}

}  // namespace crosshatch
