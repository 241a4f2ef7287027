// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_MATMUL_LAYOUT_H_
#define CROSSHATCH_TENSOR_KERNELS_MATMUL_LAYOUT_H_

/// \file
/// Converts a product of any strides for a library that multiplies matrices
/// with one unit stride, on every device.

#include <cstdint>

#include "crosshatch/tensor/kernels/matmul_kernels.h"
#include "crosshatch/tensor/kernels/movement_kernels.h"
#include "crosshatch/tensor/kernels/pointwise_kernels.h"

namespace crosshatch::internal {

/// Returns whether a library can read (rows, cols) with these strides.
inline bool HasLeadingStride(int64_t rows, int64_t cols, int64_t row_stride,
                             int64_t col_stride) {
  return (col_stride == 1 || cols == 1) && (row_stride >= cols || rows == 1);
}
/// Returns whether it can read the matrix or its transpose.
inline bool HasLeadingStrideEitherWay(int64_t rows, int64_t cols,
                                      const MatMulInput& matrix) {
  return HasLeadingStride(rows, cols, matrix.row_stride, matrix.col_stride) ||
         HasLeadingStride(cols, rows, matrix.col_stride, matrix.row_stride);
}

/// Returns the same products, with out's rows contiguous if transposing them
/// achieves that, and with a batch that shares b as one taller matrix. The bias
/// belongs to columns, so products with a bias are not transposed.
MatMulArgs NormalizedMatMul(const MatMulArgs& original);

/// The kernels of a device that complement its products.
struct MatMulHelpers {
  void (*copy)(const CopyArgs&, KernelContext&);
  void (*fill)(const FillArgs&, KernelContext&);
  void (*unary)(const UnaryArgs&, KernelContext&);
  void (*binary)(const BinaryArgs&, KernelContext&);
};

/// out += bias, if there is one.
void AddBias(const MatMulArgs& args, const MatMulHelpers& helpers,
             KernelContext& context);

/// The product without terms: out = beta * out + bias.
void ScaleOut(const MatMulArgs& args, const MatMulHelpers& helpers,
              KernelContext& context);

/// out's block of (rows, cols) from `offset` on = panel + beta * itself,
/// rounded once. The panel is contiguous, in the type in which products are
/// computed.
void AddPanel(const MatMulArgs& args, const void* panel, int64_t offset,
              int64_t rows, int64_t cols, const MatMulHelpers& helpers,
              KernelContext& context);

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_TENSOR_KERNELS_MATMUL_LAYOUT_H_
