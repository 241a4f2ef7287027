// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_CPU_CPU_INDEX_KERNELS_H_
#define CROSSHATCH_TENSOR_KERNELS_CPU_CPU_INDEX_KERNELS_H_

/// \file
/// Gather, scatter, dropout and the range of indices on the CPU.

#include "crosshatch/tensor/kernels/index_kernel_table.h"

namespace crosshatch {

/// They run on the pool of the KernelContext they are given.
const IndexKernels& CpuIndexKernels();

namespace internal {

// gather.cc
void CpuGather(const GatherArgs& args, KernelContext& context);
// scatter.cc
void CpuScatter(const ScatterArgs& args, KernelContext& context);
// dropout.cc
void CpuDropout(const DropoutArgs& args, KernelContext& context);
// check_index_range.cc
void CpuCheckIndexRange(const CheckIndexRangeArgs& args,
                        KernelContext& context);

}  // namespace internal
}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_KERNELS_CPU_CPU_INDEX_KERNELS_H_
