// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_REFERENCE_ROWS_H_
#define CROSSHATCH_TENSOR_KERNELS_REFERENCE_ROWS_H_

/// \file
/// Kernels of matrices, one row (or one matrix) at a time.

#include "crosshatch/tensor/kernels/reference/element.h"

namespace crosshatch::reference {

Real LogSumExp(const Reals& x);
Reals Softmax(const Reals& x, bool log);
/// Gives the gradient of the softmax (or its logarithm) that gave y.
Reals SoftmaxBackward(const Reals& y, const Reals& grad, bool log);

/// Mean (0 unless centered) and 1 / standard deviation.
struct NormStatistics {
  Real mean;
  Real rstd;
};
NormStatistics NormOf(const Reals& x, bool centered, Real eps);
/// Gradient by x of sum(grad * weight * xhat).
Reals NormBackward(const Reals& x, const Reals& weight, const Reals& grad,
                   bool centered, Real eps);

}  // namespace crosshatch::reference

#endif  // CROSSHATCH_TENSOR_KERNELS_REFERENCE_ROWS_H_
