// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/kernels/cpu/strided_loop.h"
#include "crosshatch/tensor/kernels/cuda/cuda_context.h"
#include "crosshatch/tensor/kernels/cuda/entry_points.h"
#include "crosshatch/tensor/kernels/cuda/gemm.h"
#include "crosshatch/tensor/kernels/matmul_layout.h"

namespace crosshatch::internal {
namespace {

constexpr MatMulHelpers kHelpers = {CudaCopy, CudaFill, CudaUnary, CudaBinary};

std::byte* At(const void* data, DType dtype, int64_t offset) {
  return const_cast<std::byte*>(static_cast<const std::byte*>(data)) +
         offset * SizeOf(dtype);
}

/// The workspace holds the library's workspace, then copies of operands that it
/// cannot read directly: one matrix of each, in its own dtype, and of out in
/// the compute type.
struct Problem {
  explicit Problem(const MatMulArgs& original)
      : args(NormalizedMatMul(original)),
        batch(StridedLoop::Make(args.batch,
                                {args.a.batch_strides, args.b.batch_strides,
                                 args.out.batch_strides},
                                -1)),
        stage_a(!HasLeadingStrideEitherWay(args.m, args.k, args.a)),
        stage_b(!HasLeadingStrideEitherWay(args.k, args.n, args.b)),
        stage_out(!HasLeadingStride(args.m, args.n, args.out.row_stride,
                                    args.out.col_stride)) {
    a_at = Round(kCudaGemmWorkspaceBytes);
    b_at = a_at + (stage_a ? Round(args.m * args.k * SizeOf(args.dtype)) : 0);
    out_at = b_at + (stage_b ? Round(args.k * args.n * SizeOf(args.dtype)) : 0);
    bytes = out_at + (stage_out ? Round(args.m * args.n *
                                        SizeOf(StatisticsDType(args.dtype)))
                                : 0);
  }
  static int64_t Round(int64_t bytes) { return (bytes + 255) / 256 * 256; }

  MatMulArgs args;
  StridedLoop batch;  // Operand 0: a, 1: b, 2: out.
  bool stage_a;
  bool stage_b;
  bool stage_out;
  int64_t a_at;
  int64_t b_at;
  int64_t out_at;
  int64_t bytes;
};

CudaMatrix AsMatrix(const MatMulInput& matrix, DType dtype, int64_t offset,
                    int64_t rows, int64_t cols) {
  CudaMatrix result;
  result.data = At(matrix.data, dtype, offset);
  result.transposed =
      !HasLeadingStride(rows, cols, matrix.row_stride, matrix.col_stride);
  if (result.transposed) {
    result.leading =
        std::max<int64_t>({rows, 1, cols == 1 ? 1 : matrix.col_stride});
  } else {
    result.leading =
        std::max<int64_t>({cols, 1, rows == 1 ? 1 : matrix.row_stride});
  }
  return result;
}

/// Returns a contiguous copy in the matrix's own memory order.
CudaMatrix Staged(const MatMulInput& matrix, DType dtype, int64_t offset,
                  int64_t rows, int64_t cols, std::byte* to,
                  KernelContext& context) {
  const bool transposed = matrix.row_stride == 1 && matrix.col_stride != 1;
  CopyArgs copy;
  copy.shape = {2, {rows, cols}};
  copy.src = {At(matrix.data, dtype, offset),
              dtype,
              {matrix.row_stride, matrix.col_stride}};
  copy.out = {to, dtype, {transposed ? 1 : cols, transposed ? rows : 1}};
  CudaCopy(copy, context);
  return {to, std::max<int64_t>(transposed ? rows : cols, 1), transposed};
}

KernelInput AsInput(const CudaMatrix& matrix, DType dtype, int64_t row,
                    int64_t col) {
  const int64_t row_stride = matrix.transposed ? 1 : matrix.leading;
  const int64_t col_stride = matrix.transposed ? matrix.leading : 1;
  return {At(matrix.data, dtype, row * row_stride + col * col_stride),
          dtype,
          {row_stride, col_stride}};
}

/// Computes a product of one matrix without a bias, for which the library has
/// no algorithm, tile by tile of out: from aligned copies of its rows and
/// columns, padded with zeros. The copies are in the workspace.
void MultiplyByTiles(const CudaGemmArgs& gemm, KernelContext& context) {
  const DType sum_dtype = StatisticsDType(gemm.dtype);
  const int64_t depth = (gemm.k + 15) / 16 * 16;
  int64_t side = 1024;
  const auto panel_bytes = [&] { return side * depth * SizeOf(gemm.dtype); };
  const auto bytes = [&] {
    return 2 * panel_bytes() + side * side * SizeOf(sum_dtype);
  };
  while (side > 16 && bytes() > gemm.workspace_bytes) side /= 2;
  std::byte* const memory = static_cast<std::byte*>(gemm.workspace);
  CudaGemmArgs tile = {.m = side,
                       .n = side,
                       .k = depth,
                       .a = {memory, depth},
                       .b = {memory + panel_bytes(), side},
                       .out = {memory + 2 * panel_bytes(), side},
                       .dtype = gemm.dtype,
                       .out_dtype = sum_dtype,
                       .alpha = gemm.alpha,
                       .tf32 = gemm.tf32};
  const auto stage = [&](const CudaMatrix& to, const KernelInput& from,
                         int64_t rows, int64_t cols) {
    const KernelOutput out = {to.data, gemm.dtype, {to.leading, 1}};
    CudaFill({{1, {panel_bytes() / SizeOf(gemm.dtype)}},
              {to.data, gemm.dtype, {1}},
              0},
             context);
    CudaCopy({{2, {rows, cols}}, from, out}, context);
  };
  for (int64_t row = 0; row < gemm.m; row += side) {
    const int64_t rows = std::min(side, gemm.m - row);
    for (int64_t col = 0; col < gemm.n; col += side) {
      const int64_t cols = std::min(side, gemm.n - col);
      if (bytes() <= gemm.workspace_bytes) {
        stage(tile.a, AsInput(gemm.a, gemm.dtype, row, 0), rows, gemm.k);
        stage(tile.b, AsInput(gemm.b, gemm.dtype, 0, col), gemm.k, cols);
      }
      CH_CHECK(bytes() <= gemm.workspace_bytes && CudaGemm(tile, context))
          << "cuBLASLt has no algorithm for a product of " << Name(gemm.dtype)
          << " to " << Name(gemm.out_dtype) << " (m, n, k) = (" << gemm.m
          << ", " << gemm.n << ", " << gemm.k << "), nor for tiles of (" << side
          << ", " << side << ", " << depth << ") in a workspace of "
          << gemm.workspace_bytes << " bytes";
      const KernelInput old = AsInput(gemm.out, gemm.out_dtype, row, col);
      const KernelInput sums = AsInput(tile.out, sum_dtype, 0, 0);
      BinaryArgs add;
      add.op = BinaryOp::kAdd;
      add.shape = {2, {rows, cols}};
      add.a = sums;
      add.b = old;
      add.alpha = gemm.beta;
      add.out = {const_cast<void*>(old.data),
                 old.dtype,
                 {old.strides[0], old.strides[1]}};
      if (gemm.beta == 0) {
        CudaCopy({add.shape, sums, add.out}, context);
      } else {
        CudaBinary(add, context);
      }
    }
  }
}

/// Computes a product in one call of the library or, if it has no algorithm,
/// without the bias, or by tiles.
void Multiply(CudaGemmArgs gemm, KernelContext& context) {
  if (CudaGemm(gemm, context)) return;
  const void* const bias = std::exchange(gemm.bias, nullptr);
  if (bias == nullptr || !CudaGemm(gemm, context)) {
    CudaGemmArgs one = gemm;
    one.batch = 1;
    for (int64_t i = 0; i < gemm.batch; ++i) {
      const auto advance = [i](const CudaMatrix& matrix, DType dtype) {
        CudaMatrix at = matrix;
        at.data = At(matrix.data, dtype, i * matrix.batch_stride);
        return at;
      };
      one.a = advance(gemm.a, gemm.dtype);
      one.b = advance(gemm.b, gemm.dtype);
      one.out = advance(gemm.out, gemm.out_dtype);
      MultiplyByTiles(one, context);
    }
  }
  if (bias == nullptr) return;
  BinaryArgs add;
  add.op = BinaryOp::kAdd;
  add.shape = {3, {gemm.batch, gemm.m, gemm.n}};
  add.out = {gemm.out.data,
             gemm.out_dtype,
             {gemm.out.batch_stride, gemm.out.leading, 1}};
  add.a = {gemm.out.data,
           gemm.out_dtype,
           {gemm.out.batch_stride, gemm.out.leading, 1}};
  add.b = {bias, gemm.out_dtype, {0, 0, 1}};
  CudaBinary(add, context);
}

}  // namespace

int64_t CudaMatMulWorkspaceBytes(const MatMulArgs& args) {
  return Problem(args).bytes;
}

void CudaMatMul(const MatMulArgs& original, KernelContext& context) {
  CH_CHECK(
      IsFloatingPoint(original.dtype) &&
      (original.out_dtype == original.dtype ||
       (SizeOf(original.dtype) == 2 && original.out_dtype == DType::kFloat32)))
      << "matmul kernel of " << Name(original.dtype) << " to "
      << Name(original.out_dtype);
  CH_CHECK_LT(original.batch.ndim, kMaxKernelDims - 1) << "matmul kernel";
  int64_t products = 1;
  for (int d = 0; d < original.batch.ndim; ++d) {
    products *= original.batch.sizes[d];
  }
  if (products * original.m * original.n == 0) return;
  if (original.k == 0) return ScaleOut(original, kHelpers, context);
  const Problem problem(original);
  const MatMulArgs& args = problem.args;
  auto* const workspace = static_cast<std::byte*>(args.workspace);
  CH_CHECK(problem.bytes == 0 || workspace != nullptr)
      << "matmul kernel: no workspace";

  // The library processes the inner dim of the batch, unless something is
  // staged.
  StridedLoop loop = problem.batch;
  CudaGemmArgs gemm;
  gemm.m = args.m;
  gemm.n = args.n;
  gemm.k = args.k;
  gemm.dtype = args.dtype;
  gemm.alpha = args.alpha;
  gemm.tf32 = CudaContextOf(context).tf32;
  gemm.workspace = workspace;
  gemm.workspace_bytes = kCudaGemmWorkspaceBytes;
  // The library adds the bias in registers.
  const bool adds_bias = args.dtype != DType::kFloat64 && !problem.stage_out;
  if (adds_bias) gemm.bias = args.bias;
  int64_t inner_strides[3] = {};
  if (!problem.stage_a && !problem.stage_b && !problem.stage_out) {
    gemm.batch = loop.inner();
    for (int o = 0; o < 3; ++o) inner_strides[o] = loop.inner_stride(o);
    loop.sizes[loop.ndim - 1] = 1;
  } else {
    loop.sizes[loop.ndim++] = 1;
  }
  RowCursor cursor(loop, 0);
  for (int64_t i = 0; i < loop.rows(); ++i, cursor.Next()) {
    gemm.a =
        problem.stage_a
            ? Staged(args.a, args.dtype, cursor.offset(0), args.m, args.k,
                     workspace + problem.a_at, context)
            : AsMatrix(args.a, args.dtype, cursor.offset(0), args.m, args.k);
    gemm.b =
        problem.stage_b
            ? Staged(args.b, args.dtype, cursor.offset(1), args.k, args.n,
                     workspace + problem.b_at, context)
            : AsMatrix(args.b, args.dtype, cursor.offset(1), args.k, args.n);
    if (problem.stage_out) {
      gemm.out = {workspace + problem.out_at, args.n};
      gemm.out_dtype = StatisticsDType(args.dtype);
      gemm.beta = 0;
    } else {
      gemm.out = {
          At(args.out.data, args.out_dtype, cursor.offset(2)),
          std::max<int64_t>(args.n, args.m == 1 ? 1 : args.out.row_stride)};
      gemm.out_dtype = args.out_dtype;
      gemm.beta = args.beta;
    }
    gemm.a.batch_stride = inner_strides[0];
    gemm.b.batch_stride = inner_strides[1];
    gemm.out.batch_stride = inner_strides[2];
    Multiply(gemm, context);
    if (problem.stage_out) {
      AddPanel(args, gemm.out.data, cursor.offset(2), args.m, args.n, kHelpers,
               context);
    }
  }
  if (!adds_bias) AddBias(args, kHelpers, context);
}

}  // namespace crosshatch::internal
