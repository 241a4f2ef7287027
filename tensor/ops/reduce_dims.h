// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_OPS_REDUCE_DIMS_H_
#define CROSSHATCH_TENSOR_OPS_REDUCE_DIMS_H_

/// \file
/// The dims that a reduction is over.

#include "crosshatch/tensor/shape.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch::internal {

/// Ascending dims in [0, ndim); all where none are given. Checks that they are
/// dims of `a`, each once, and names `op` otherwise.
Shape NormalizeDims(ShapeView dims, const Tensor& a, const char* op);

/// `sizes` with those of `dims` made 1.
Shape KeptSizes(ShapeView sizes, ShapeView dims);

/// `sizes` without those of `dims`. \pre dims ascend
Shape DroppedSizes(ShapeView sizes, ShapeView dims);

/// The product of the sizes of `dims`.
int64_t NumReduced(ShapeView sizes, ShapeView dims);

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_TENSOR_OPS_REDUCE_DIMS_H_
