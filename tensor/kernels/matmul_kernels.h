// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_MATMUL_KERNELS_H_
#define CROSSHATCH_TENSOR_KERNELS_MATMUL_KERNELS_H_

/// \file
/// Matrix products.

#include <cstdint>

#include "crosshatch/tensor/dtype.h"
#include "crosshatch/tensor/kernels/operands.h"

namespace crosshatch {

/// An operand of MatMulArgs: a batch of matrices.
struct MatMulInput {
  const void* data = nullptr;
  int64_t row_stride = 0;
  int64_t col_stride = 0;
  int64_t batch_strides[kMaxKernelDims] = {};  ///< 0 where broadcast.
};
struct MatMulOutput {
  void* data = nullptr;
  int64_t row_stride = 0;
  int64_t col_stride = 0;
  int64_t batch_strides[kMaxKernelDims] = {};
};

/// out = alpha * a b + beta * out + bias, for each matrix of a batch: a (m, k),
/// b (k, n), out (m, n), bias (n) for each row. A transpose is a swap of
/// strides. With k == 0 the product is zero; with beta == 0 the old out is not
/// read. |error| <= gamma(k + 3) * (|alpha| |a| |b| + |beta out| + |bias|),
/// plus the rounding to a 16-bit out, once, or at most twice with a bias. On
/// CUDA, if enabled (CudaOptions::tf32), products of float32 round a and b to
/// TF32.
struct MatMulArgs {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  /// Sizes of the batch; none for one product.
  KernelShape batch;
  MatMulInput a;
  MatMulInput b;
  MatMulOutput out;
  /// The dtype of a and b: floating point.
  DType dtype = DType::kFloat32;
  /// `dtype`, or f32 for 16-bit a and b.
  DType out_dtype = DType::kFloat32;
  double alpha = 1;
  double beta = 0;
  /// n contiguous elements of `out_dtype`; null: none.
  const void* bias = nullptr;
  /// matmul_workspace_bytes(args) bytes, aligned to 64; null if 0.
  void* workspace = nullptr;
};

/// The list of this family (kernel_table.h).
#define CH_MATMUL_KERNELS(K, W, d) W(d, matmul, MatMul, MatMulArgs)

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_KERNELS_MATMUL_KERNELS_H_
