// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/kernels/cpu/cpu_index_kernels.h"

namespace crosshatch {

const IndexKernels& CpuIndexKernels() {
  static constexpr IndexKernels kTable = {
      .gather = internal::CpuGather,
      .scatter = internal::CpuScatter,
      .dropout = internal::CpuDropout,
      .check_index_range = internal::CpuCheckIndexRange,
  };
  return kTable;
}

}  // namespace crosshatch
