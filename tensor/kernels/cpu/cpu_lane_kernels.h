// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_CPU_CPU_LANE_KERNELS_H_
#define CROSSHATCH_TENSOR_KERNELS_CPU_CPU_LANE_KERNELS_H_

/// \file
/// Scans and sorts on the CPU.

#include "crosshatch/tensor/kernels/lane_kernel_table.h"

namespace crosshatch {

/// They run on the pool of the KernelContext they are given, lane by lane.
const LaneKernels& CpuLaneKernels();

namespace internal {

// cumsum.cc
void CpuCumSum(const CumSumArgs& args, KernelContext& context);
// sort.cc
int64_t CpuSortWorkspaceBytes(const SortArgs& args);
void CpuSort(const SortArgs& args, KernelContext& context);

}  // namespace internal
}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_KERNELS_CPU_CPU_LANE_KERNELS_H_
