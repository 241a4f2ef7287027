// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_OPS_INDEX_RANGE_H_
#define CROSSHATCH_TENSOR_OPS_INDEX_RANGE_H_

/// \file
/// For ops whose kernels take an index that names nothing for one that another
/// rank holds.

#include "crosshatch/tensor/kernels/index_kernel_table.h"

namespace crosshatch::internal {

/// Launches the check of `args`. A poisoned rank skips it: its indices may be
/// what a collective that failed did not write.
void LaunchIndexRangeCheck(const CheckIndexRangeArgs& args);

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_TENSOR_OPS_INDEX_RANGE_H_
