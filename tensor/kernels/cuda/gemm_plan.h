// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_CUDA_GEMM_PLAN_H_
#define CROSSHATCH_TENSOR_KERNELS_CUDA_GEMM_PLAN_H_

/// \file
/// Converts a product for a library with column-major matrices: a pure
/// function, whose result cuBLASLt or the emulation computes.

#include <compare>
#include <cstdint>
#include <string>

#include "crosshatch/tensor/dtype.h"

namespace crosshatch::internal {

/// A matrix of unit stride in one of its dims, one of a batch.
struct CudaMatrix {
  void* data = nullptr;
  /// Elements between rows or, if transposed, between columns.
  int64_t leading = 1;
  bool transposed = false;
  /// Elements between matrices of the batch; 0 if all share one.
  int64_t batch_stride = 0;
};

/// out = alpha * a b + beta * out + bias: a (m, k), b (k, n), out (m, n) not
/// transposed, bias (n) for each row; all sizes are positive. Sums are in
/// float, or in double for f64; with beta == 0 the old out is not read.
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
  /// n elements of out_dtype, the same for all of the batch; null: none. Not
  /// for f64, for which the library has no such epilogue.
  const void* bias = nullptr;
  /// For f32: a and b may be rounded to TF32, which has 10 bits of mantissa.
  bool tf32 = false;
  /// For float8 a (of `dtype`) and b: factors of the product in device memory,
  /// one for each matrix or, with scales_by_row, one for each row of a and each
  /// column of b.
  DType b_dtype = DType::kFloat8E4M3;
  const float* scale_a = nullptr;
  const float* scale_b = nullptr;
  bool scales_by_row = false;
  void* workspace = nullptr;
  int64_t workspace_bytes = 0;
};

/// The type of products and sums.
enum class GemmCompute : uint8_t { kFloat32, kTf32, kFloat64 };

/// What multiplies the sums of a float8 product.
enum class GemmScales : uint8_t {
  kNone,
  kTensor,  ///< A number for each matrix.
  kRow,     ///< A vector along the outer dim of each matrix.
};

/// A column-major matrix: element (r, c) is at r + c * leading.
struct GemmLayout {
  DType dtype = DType::kFloat32;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t leading = 1;
  int64_t batch_stride = 0;
  /// The alignment of the address: the greatest power of two that divides it,
  /// at most 16.
  uint32_t alignment = 16;

  friend auto operator<=>(const GemmLayout&, const GemmLayout&) = default;
};

/// out = alpha * op(left) op(right) + beta * out + bias, column-major, op being
/// an optional transpose, bias (rows of out) for each column. It has everything
/// that determines an algorithm, and no address: equal plans use one algorithm.
struct GemmPlan {
  GemmLayout left;
  GemmLayout right;
  GemmLayout out;
  int64_t batch = 1;
  bool transpose_left = false;
  bool transpose_right = false;
  /// The alignment of the bias' address, as for a matrix; 0: no bias.
  uint32_t bias_alignment = 0;
  GemmCompute compute = GemmCompute::kFloat32;
  GemmScales scales = GemmScales::kNone;
  int64_t workspace_bytes = 0;

  friend auto operator<=>(const GemmPlan&, const GemmPlan&) = default;
};

/// Returns the plan. Column-major, our out is out^T = b^T a^T: `left` is the
/// matrix b, `right` a, and the bias of our columns that of the plan's rows.
GemmPlan PlanGemm(const CudaGemmArgs& args);

/// Returns which requirement of cuBLASLt's float8 products the plan violates;
/// empty if none.
std::string WhyNotFloat8(const GemmPlan& plan);

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_TENSOR_KERNELS_CUDA_GEMM_PLAN_H_
