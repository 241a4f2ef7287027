// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_REFERENCE_REDUCE_H_
#define CROSSHATCH_TENSOR_KERNELS_REFERENCE_REDUCE_H_

#include "crosshatch/tensor/kernels/kernel_table.h"
#include "crosshatch/tensor/kernels/reference/element.h"

namespace crosshatch::reference {

struct Reduction {
  Reals values;
  Reals magnitudes;  ///< The sum of the terms' absolute values.
  int64_t terms;     ///< Of each output.
};

/// Outputs in the row-major order of the dims that stay; the old output is not
/// added.
Reduction Reduce(const ReduceArgs& args);

}  // namespace crosshatch::reference

#endif  // CROSSHATCH_TENSOR_KERNELS_REFERENCE_REDUCE_H_
