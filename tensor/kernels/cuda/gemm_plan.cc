// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/kernels/cuda/gemm_plan.h"

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
  GemmPlan plan = {
      .left = ByColumns(args.b, args.dtype, args.k, args.n),
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
  return plan;
}

}  // namespace crosshatch::internal
