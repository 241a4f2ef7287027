// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_OPS_REDUCE_DIMS_H_
#define CROSSHATCH_TENSOR_OPS_REDUCE_DIMS_H_

/// \file
/// The dims of a reduction.

#include "crosshatch/tensor/shape.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch::internal {

/// Returns ascending dims in [0, ndim); all if `dims` is empty. Checks that
/// they are distinct dims of `a`; the message names `op`.
Shape NormalizeDims(ShapeView dims, const Tensor& a, const char* op);

/// Returns `sizes` with those of `dims` set to 1.
Shape KeptSizes(ShapeView sizes, ShapeView dims);

/// Returns `sizes` without those of `dims`.
/// \pre dims ascend
Shape DroppedSizes(ShapeView sizes, ShapeView dims);

/// Returns the product of the sizes of `dims`.
int64_t NumReduced(ShapeView sizes, ShapeView dims);

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_TENSOR_OPS_REDUCE_DIMS_H_
