// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/kernels/cuda/gemm_plan.h"

#include <string>
#include <utility>

#include "crosshatch/base/check.h"

namespace crosshatch::internal {
namespace {

uint32_t AlignmentOf(const void* data) {
  uint32_t bytes = 16;
  while (reinterpret_cast<uintptr_t>(data) % bytes != 0) bytes /= 2;
  return bytes;
}

/// Returns the column-major layout of a row-major matrix, which is that of its
/// transpose.
GemmLayout ByColumns(const CudaMatrix& matrix, DType dtype, int64_t rows,
                     int64_t cols) {
  if (matrix.transposed) std::swap(rows, cols);
  return {.dtype = dtype,
          .rows = cols,
          .cols = rows,
          .leading = matrix.leading,
          .batch_stride = matrix.batch_stride,
          .alignment = AlignmentOf(matrix.data)};
}

}  // namespace

GemmPlan PlanGemm(const CudaGemmArgs& args) {
  CH_CHECK(!args.out.transposed) << "a product into a transposed matrix";
  const bool is_double = args.dtype == DType::kFloat64;
  CH_CHECK(!is_double || args.bias == nullptr)
      << "a product of " << Name(args.dtype) << " with a bias";
  const bool is_float8 = IsFloat8(args.dtype);
  GemmPlan plan = {
      .left = ByColumns(args.b, is_float8 ? args.b_dtype : args.dtype, args.k,
                        args.n),
      .right = ByColumns(args.a, args.dtype, args.m, args.k),
      .out = ByColumns(args.out, args.out_dtype, args.m, args.n),
      .batch = args.batch,
      .transpose_left = args.b.transposed,
      .transpose_right = args.a.transposed,
      .bias_alignment = args.bias == nullptr ? 0 : AlignmentOf(args.bias),
      .workspace_bytes = args.workspace_bytes,
  };
  if (is_double) {
    plan.compute = GemmCompute::kFloat64;
  } else if (args.tf32 && args.dtype == DType::kFloat32) {
    plan.compute = GemmCompute::kTf32;
  }
  if (is_float8) {
    plan.scales = args.scales_by_row ? GemmScales::kRow : GemmScales::kTensor;
    const std::string why = WhyNotFloat8(plan);
    CH_CHECK(why.empty()) << "a float8 product " << why;
  }
  return plan;
}

std::string WhyNotFloat8(const GemmPlan& plan) {
  const auto is_aligned = [](const GemmLayout& matrix) {
    return matrix.alignment == 16 &&
           matrix.leading * SizeOf(matrix.dtype) % 16 == 0 &&
           matrix.rows % 16 == 0;
  };
  if (!IsFloat8(plan.left.dtype) || !IsFloat8(plan.right.dtype) ||
      (plan.left.dtype == DType::kFloat8E5M2 &&
       plan.right.dtype == DType::kFloat8E5M2)) {
    return std::string("of ") + Name(plan.right.dtype) + " and " +
           Name(plan.left.dtype) + ": both float8, at most one e5m2";
  }
  if (plan.out.dtype != DType::kBFloat16 && plan.out.dtype != DType::kFloat16 &&
      plan.out.dtype != DType::kFloat32) {
    return std::string("to ") + Name(plan.out.dtype);
  }
  if (!plan.transpose_left || plan.transpose_right) {
    return "whose operands are not contiguous along k";
  }
  if (!is_aligned(plan.left) || !is_aligned(plan.right) ||
      !is_aligned(plan.out)) {
    return "with k, n, a leading dim or an address that is no multiple of 16 "
           "(bytes)";
  }
  if (plan.compute != GemmCompute::kFloat32 || plan.batch != 1 ||
      plan.bias_alignment != 0) {
    return "in a batch, with a bias, or not summed in float32";
  }
  return "";
}

}  // namespace crosshatch::internal
