// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_REFERENCE_MATMUL_H_
#define CROSSHATCH_TENSOR_KERNELS_REFERENCE_MATMUL_H_

#include "crosshatch/tensor/kernels/kernel_table.h"
#include "crosshatch/tensor/kernels/reference/element.h"

namespace crosshatch::reference {

/// Outputs in row-major order of (batch, m, n).
struct Products {
  Reals values;
  Reals magnitudes;  ///< |alpha| sum |a| |b| + |beta out| + |bias|.
};

/// Reads the old out where beta is not 0.
Products MatMul(const MatMulArgs& args);
/// The elements of out.
Reals ReadOut(const MatMulArgs& args);

}  // namespace crosshatch::reference

#endif  // CROSSHATCH_TENSOR_KERNELS_REFERENCE_MATMUL_H_
