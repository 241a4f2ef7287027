// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_KERNEL_TABLE_H_
#define CROSSHATCH_TENSOR_KERNELS_KERNEL_TABLE_H_

/// \file
/// The kernels of a device: tables of functions of pointers, sizes, strides and
/// dtypes, one for each family. operands.h has the rules that hold for all of
/// them, the header of a family what each of its kernels computes.

#include <string>
#include <vector>

#include "crosshatch/tensor/kernels/attention_kernels.h"
#include "crosshatch/tensor/kernels/index_kernels.h"
#include "crosshatch/tensor/kernels/lane_kernels.h"
#include "crosshatch/tensor/kernels/matmul_kernels.h"
#include "crosshatch/tensor/kernels/movement_kernels.h"
#include "crosshatch/tensor/kernels/pointwise_kernels.h"
#include "crosshatch/tensor/kernels/reduce_kernels.h"
#include "crosshatch/tensor/kernels/row_kernels.h"
#include "crosshatch/tensor/kernels/training_kernels.h"
#include "crosshatch/tensor/kernels/window_kernels.h"

namespace crosshatch {

/// All that a device can do. A member of a family is one of the whole, so that
/// &KernelTable::copy names a kernel whatever its family.
struct KernelTable : MovementKernels,
                     PointwiseKernels,
                     ReduceKernels,
                     MatMulKernels,
                     AttentionKernels,
                     RowKernels,
                     TrainingKernels,
                     IndexKernels,
                     LaneKernels,
                     WindowKernels {};

/// The names of the kernels that `table` lacks.
std::vector<std::string> MissingKernels(const KernelTable& table);

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_KERNELS_KERNEL_TABLE_H_
