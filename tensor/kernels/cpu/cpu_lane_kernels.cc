// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/kernels/cpu/cpu_lane_kernels.h"

namespace crosshatch {

const LaneKernels& CpuLaneKernels() {
  static constexpr LaneKernels kTable = {
      .cumsum = internal::CpuCumSum,
      .sort_workspace_bytes = internal::CpuSortWorkspaceBytes,
      .sort = internal::CpuSort,
  };
  return kTable;
}

}  // namespace crosshatch
