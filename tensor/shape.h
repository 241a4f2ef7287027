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

/// Product of the sizes; 1 for no dims.
int64_t NumElements(ShapeView sizes);

/// Row-major strides of a dense tensor.
Shape ContiguousStrides(ShapeView sizes);

/// Whether the strides are those of a dense row-major tensor (dims of size 1
/// may have any stride; a tensor without elements is contiguous).
bool IsContiguous(ShapeView sizes, ShapeView strides);

/// Whether several elements are one, by strides of zero: an expanded tensor,
/// which is not written to.
bool Repeats(ShapeView sizes, ShapeView strides);

/// Dim in [0, ndim) from one in [-ndim, ndim); checks the range and names `op`
/// in the message.
int NormalizeDim(int64_t dim, int ndim, const char* op);

/// The shape that both broadcast to (numpy's rule); checks that there is one
/// and names `op` and both shapes otherwise.
Shape BroadcastShapes(ShapeView a, ShapeView b, const char* op);

/// "[2, 3]".
std::string ToString(ShapeView sizes);

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_SHAPE_H_
