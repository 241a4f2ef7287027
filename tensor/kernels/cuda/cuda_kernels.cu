// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/kernels/cuda/cuda_kernels.h"
#include "crosshatch/tensor/kernels/cuda/entry_points.h"

namespace crosshatch {

const KernelTable& CudaKernels() {
  static constexpr KernelTable kTable = CH_KERNEL_TABLE(Cuda);
  return kTable;
}

}  // namespace crosshatch
