// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_SHAPE_H_
#define CROSSHATCH_TENSOR_SHAPE_H_

/// \file
/// Sizes and strides of tensors, counted in elements.

#include <cstdint>
#include <string>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"

namespace crosshatch {

/// Sizes (or strides) of each dim, outermost first. Inline up to 5 dims.
using Shape = absl::InlinedVector<int64_t, 5>;
using ShapeView = absl::Span<const int64_t>;

/// Returns the product of the sizes; 1 for no dims.
inline int64_t NumElements(ShapeView sizes) {
  int64_t product = 1;
  for (const int64_t size : sizes) product *= size;
  return product;
}

/// Returns the row-major strides of a dense tensor.
Shape ContiguousStrides(ShapeView sizes);

/// Returns whether the strides are those of a dense row-major tensor. Dims of
/// size 1 may have any stride; a tensor without elements is contiguous.
bool IsContiguous(ShapeView sizes, ShapeView strides);

/// Returns whether elements share addresses because of zero strides. Such an
/// expanded tensor must not be written to.
bool Repeats(ShapeView sizes, ShapeView strides);

/// Returns the dim in [0, ndim) for one in [-ndim, ndim). Checks the range; the
/// message names `op`.
int NormalizeDim(int64_t dim, int ndim, const char* op);

/// Returns the shape that both broadcast to, by NumPy's rule. Checks that there
/// is one; the message names `op` and both shapes.
Shape BroadcastShapes(ShapeView a, ShapeView b, const char* op);

/// "[2, 3]".
std::string ToString(ShapeView sizes);

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_SHAPE_H_
