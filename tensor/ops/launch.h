// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_OPS_LAUNCH_H_
#define CROSSHATCH_TENSOR_OPS_LAUNCH_H_

/// \file
/// Converts local tensors to kernel arguments for Launch (tensor/launch.h);
/// copies and fills for ops.

#include <cstdint>

#include "crosshatch/tensor/launch.h"
#include "crosshatch/tensor/shape.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch::internal {

KernelShape ToKernelShape(ShapeView sizes, const char* op);
/// Returns `tensor` broadcast to `sizes`.
KernelInput BroadcastInput(const Tensor& tensor, ShapeView sizes);
/// Returns `tensor` in its own sizes.
KernelInput Input(const Tensor& tensor);
KernelOutput Output(const Tensor& tensor);

/// A tensor as a matrix of contiguous rows: the leading dims folded.
struct Rows {
  Tensor tensor;  ///< What `data` points into.
  int64_t rows = 1;
  int64_t cols = 1;
  int64_t row_stride = 0;

  RowsInput input() const { return {tensor.raw_data(), row_stride}; }
  RowsOutput output() const { return {tensor.raw_data(), row_stride}; }
};
/// Returns a tensor of at least one dim as rows. Copies it if its strides do
/// not fold.
Rows ToRows(const Tensor& tensor);

/// Returns `tensor`, or a contiguous copy, counted as copied bytes.
Tensor Dense(const Tensor& tensor);

/// Copies `src` to `dst` (or adds it), converting; src broadcasts.
void LaunchCopy(const Tensor& dst, const Tensor& src,
                WriteMode mode = WriteMode::kOverwrite);
void LaunchFill(const Tensor& dst, double value);
/// Writes src * scale to `dst`, converted to or from float8. `scale` broadcasts
/// or is undefined.
void LaunchFloat8Convert(const Tensor& dst, const Tensor& src,
                         const Tensor& scale);

/// Returns whether dims [first, last) of the view fold into one dim with one
/// stride.
bool Folds(ShapeView sizes, ShapeView strides, int first, int last);

/// Returns all sizes except the last.
inline ShapeView LeadingSizes(ShapeView sizes) {
  return sizes.subspan(0, sizes.size() - 1);
}

/// Checks that floating point `a` and `b` have one dtype.
void CheckSameDType(const char* op, const Tensor& a, const Tensor& b);
void CheckFloating(const char* op, const Tensor& a);
/// Checks that class or row indices are i32, i64 or u16.
void CheckIndices(const char* op, const Tensor& indices);

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_TENSOR_OPS_LAUNCH_H_
