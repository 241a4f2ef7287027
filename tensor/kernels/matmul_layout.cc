// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/kernels/matmul_layout.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "crosshatch/base/check.h"

namespace crosshatch::internal {
namespace {

/// The whole batch of output matrices.
struct WholeOut {
  explicit WholeOut(const MatMulArgs& args)
      : shape(args.batch), out{args.out.data, args.out_dtype} {
    CH_CHECK(shape.ndim + 2 <= kMaxKernelDims) << "matmul kernel: batch dims";
    std::copy(args.out.batch_strides, args.out.batch_strides + shape.ndim,
              out.strides);
    shape.sizes[shape.ndim] = args.m;
    out.strides[shape.ndim++] = args.out.row_stride;
    shape.sizes[shape.ndim] = args.n;
    out.strides[shape.ndim++] = args.out.col_stride;
  }
  KernelInput AsInput() const {
    KernelInput input = {out.data, out.dtype};
    std::copy(out.strides, out.strides + shape.ndim, input.strides);
    return input;
  }

  KernelShape shape;
  KernelOutput out;
};

}  // namespace

MatMulArgs NormalizedMatMul(const MatMulArgs& original) {
  MatMulArgs args = original;
  if (args.out.col_stride != 1 && args.out.row_stride == 1 && args.m > 1 &&
      args.bias == nullptr) {
    std::swap(args.m, args.n);
    std::swap(args.a, args.b);
    std::swap(args.a.row_stride, args.a.col_stride);
    std::swap(args.b.row_stride, args.b.col_stride);
    std::swap(args.out.row_stride, args.out.col_stride);
  }
  for (int d = args.batch.ndim - 1; d >= 0; --d) {
    const bool is_rows =
        args.b.batch_strides[d] == 0 &&
        args.a.batch_strides[d] == args.m * args.a.row_stride &&
        args.out.batch_strides[d] == args.m * args.out.row_stride;
    if (args.batch.sizes[d] != 1 && !is_rows) break;
    args.m *= args.batch.sizes[d];
    args.batch.ndim = d;
  }
  return args;
}

void AddBias(const MatMulArgs& args, const MatMulHelpers& helpers,
             KernelContext& context) {
  if (args.bias == nullptr) return;
  const WholeOut whole(args);
  BinaryArgs add;
  add.op = BinaryOp::kAdd;
  add.shape = whole.shape;
  add.a = whole.AsInput();
  add.b = {args.bias, args.out_dtype};
  add.b.strides[whole.shape.ndim - 1] = 1;
  add.out = whole.out;
  helpers.binary(add, context);
}

void ScaleOut(const MatMulArgs& args, const MatMulHelpers& helpers,
              KernelContext& context) {
  const WholeOut whole(args);
  if (args.beta == 0) {
    helpers.fill({whole.shape, whole.out, 0}, context);
  } else if (args.beta != 1) {
    UnaryArgs scale;
    scale.op = UnaryOp::kMulScalar;
    scale.shape = whole.shape;
    scale.a = whole.AsInput();
    scale.out = whole.out;
    scale.scalar = args.beta;
    helpers.unary(scale, context);
  }
  AddBias(args, helpers, context);
}

void AddPanel(const MatMulArgs& args, const void* panel, int64_t offset,
              int64_t rows, int64_t cols, const MatMulHelpers& helpers,
              KernelContext& context) {
  const KernelShape shape = {2, {rows, cols}};
  const KernelInput from = {panel, StatisticsDType(args.dtype), {cols, 1}};
  auto* const out =
      static_cast<std::byte*>(args.out.data) + offset * SizeOf(args.out_dtype);
  const KernelOutput to = {
      out, args.out_dtype, {args.out.row_stride, args.out.col_stride}};
  if (args.beta == 0 || args.beta == 1) {
    helpers.copy(
        {shape, from, to,
         args.beta == 0 ? WriteMode::kOverwrite : WriteMode::kAccumulate},
        context);
    return;
  }
  BinaryArgs add;
  add.op = BinaryOp::kAdd;
  add.shape = shape;
  add.a = from;
  add.b = {to.data, to.dtype, {args.out.row_stride, args.out.col_stride}};
  add.out = to;
  add.alpha = args.beta;
  helpers.binary(add, context);
}

}  // namespace crosshatch::internal
