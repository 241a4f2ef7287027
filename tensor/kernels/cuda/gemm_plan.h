// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_CUDA_GEMM_PLAN_H_
#define CROSSHATCH_TENSOR_KERNELS_CUDA_GEMM_PLAN_H_

/// \file
/// How a product is put to a library whose matrices lie by columns: a pure
/// function, of which cuBLASLt and the emulation each carry out the result.

#include <compare>
#include <cstdint>

#include "crosshatch/tensor/dtype.h"

namespace crosshatch::internal {

/// A matrix of unit stride in one of its dims, one of a batch.
struct CudaMatrix {
  void* data = nullptr;
  /// Elements from one row to the next or, where transposed, from one column to
  /// the next.
  int64_t leading = 1;
  bool transposed = false;
  /// From one of the batch to the next; 0 for one that all share.
  int64_t batch_stride = 0;
};

/// out = alpha * a b + beta * out + bias: a (m, k), b (k, n), out (m, n) not
/// transposed, bias (n) for each row; all sizes are positive. Sums are of
/// float, or of double for f64; with beta == 0 the old out is not read.
struct CudaGemmArgs {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  int64_t batch = 1;
  CudaMatrix a;
  CudaMatrix b;
  CudaMatrix out;
  DType dtype = DType::kFloat32;
  DType out_dtype = DType::kFloat32;
  double alpha = 1;
  double beta = 0;
  /// n elements of out_dtype, the same for all of the batch; null: none. Not of
  /// f64, which the library has no such epilogue for.
  const void* bias = nullptr;
  /// Of f32: a and b may be rounded to TF32, which has 10 bits of mantissa.
  bool tf32 = false;
  /// kCudaGemmWorkspaceBytes bytes.
  void* workspace = nullptr;
};

/// What terms are multiplied and added in.
enum class GemmCompute : uint8_t { kFloat32, kTf32, kFloat64 };

/// A matrix by columns: element (r, c) lies at r + c * leading.
struct GemmLayout {
  DType dtype = DType::kFloat32;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t leading = 1;
  int64_t batch_stride = 0;
  /// Bytes that the address is a multiple of: the greatest power of two, at
  /// most 16.
  uint32_t alignment = 16;

  friend auto operator<=>(const GemmLayout&, const GemmLayout&) = default;
};

/// out = alpha * op(left) op(right) + beta * out + bias, by columns, op being a
/// transpose where asked for, bias (rows of out) for each column. It holds all
/// that an algorithm is chosen by, and no address: plans that are equal take
/// one algorithm.
struct GemmPlan {
  GemmLayout left;
  GemmLayout right;
  GemmLayout out;
  int64_t batch = 1;
  bool transpose_left = false;
  bool transpose_right = false;
  /// Of the bias' address, as of a matrix; 0: there is none.
  uint32_t bias_alignment = 0;
  GemmCompute compute = GemmCompute::kFloat32;

  friend auto operator<=>(const GemmPlan&, const GemmPlan&) = default;
};

/// By columns our out is out^T = b^T a^T: `left` is the matrix b, `right` a,
/// and the bias of our columns that of the plan's rows.
GemmPlan PlanGemm(const CudaGemmArgs& args);

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_TENSOR_KERNELS_CUDA_GEMM_PLAN_H_
