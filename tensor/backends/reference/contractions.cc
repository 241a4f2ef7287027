// SPDX-License-Identifier: Apache-2.0
// Kernels that sum over dims: reductions, products, attention.
#include <array>
#include <cstddef>
#include <vector>

#include "crosshatch/tensor/backends/reference/elements.h"
#include "crosshatch/tensor/backends/reference/entry_points.h"
#include "crosshatch/tensor/kernels/reference/attention.h"
#include "crosshatch/tensor/kernels/reference/matmul.h"
#include "crosshatch/tensor/kernels/reference/reduce.h"

namespace crosshatch::reference {
namespace {

/// Sums and products of integers wrap, which Reals do not.
bool Wraps(const ReduceArgs& args) {
  return IsInteger(args.in.dtype) && IsInteger(args.out.dtype) &&
         (args.kind == ReduceKind::kSum || args.kind == ReduceKind::kProduct ||
          args.kind == ReduceKind::kSumOfSquares);
}

int64_t ReduceIntegers(const ReduceArgs& args, int64_t base,
                       const std::vector<int64_t>& terms) {
  int64_t result = args.kind == ReduceKind::kProduct ? 1 : 0;
  for (int64_t offset : terms) {
    const int64_t x = ReadInteger(args.in.data, args.in.dtype, base + offset);
    result = args.kind == ReduceKind::kProduct ? Times(result, x)
             : args.kind == ReduceKind::kSum   ? Plus(result, x)
                                               : Plus(result, Times(x, x));
  }
  return result;
}

KernelShape ShapeOfHeads(int64_t batch, int64_t time, int64_t heads,
                         int64_t dim) {
  return {4, {batch, time, heads, dim}};
}

KernelOutput HeadsOut(const HeadsOutput& x, DType dtype) {
  return {x.data, dtype, {x.batch_stride, x.time_stride, x.head_stride, 1}};
}

}  // namespace

void ReduceKernel(const ReduceArgs& args, KernelContext& /*context*/) {
  KernelShape kept, reduced;
  int64_t in_strides[kMaxKernelDims], out_strides[kMaxKernelDims],
      term_strides[kMaxKernelDims];
  for (int d = 0; d < args.shape.ndim; ++d) {
    if (((args.reduced >> d) & 1u) != 0) {
      term_strides[reduced.ndim] = args.in.strides[d];
      reduced.sizes[reduced.ndim++] = args.shape.sizes[d];
    } else {
      in_strides[kept.ndim] = args.in.strides[d];
      out_strides[kept.ndim] = args.out.strides[d];
      kept.sizes[kept.ndim++] = args.shape.sizes[d];
    }
  }
  const std::vector<int64_t> outs = Offsets(kept, out_strides);
  if (Wraps(args)) {
    const std::vector<int64_t> bases = Offsets(kept, in_strides);
    const std::vector<int64_t> terms = Offsets(reduced, term_strides);
    for (size_t i = 0; i < outs.size(); ++i) {
      PutInteger(args.out.data, args.out.dtype, outs[i],
                 ReduceIntegers(args, bases[i], terms), args.mode);
    }
    return;
  }
  const Reduction result = Reduce(args);
  for (size_t i = 0; i < outs.size(); ++i) {
    Real value = result.values[i];
    if (result.terms == 0 && args.out.dtype == DType::kBool) {
      value = args.kind == ReduceKind::kMin ? 1 : 0;
    }
    Put(args.out.data, args.out.dtype, outs[i], value, args.mode);
  }
}

void MatMulKernel(const MatMulArgs& args, KernelContext& /*context*/) {
  const Products result = MatMul(args);
  size_t next = 0;
  for (int64_t base : Offsets(args.batch, args.out.batch_strides)) {
    for (int64_t i = 0; i < args.m; ++i) {
      for (int64_t j = 0; j < args.n; ++j) {
        WriteElement(args.out.data, args.out_dtype,
                     base + i * args.out.row_stride + j * args.out.col_stride,
                     result.values[next++]);
      }
    }
  }
}

void AttentionKernel(const AttentionArgs& args, KernelContext& /*context*/) {
  const Attention result = AttentionForward(args);
  PutAll(ShapeOfHeads(args.batch, args.q_len, args.q_heads, args.head_dim),
         HeadsOut(args.out, args.dtype), result.out);
  PutRun(args.logsumexp, StatisticsDType(args.dtype), 0, result.logsumexp);
}

void AttentionBackwardKernel(const AttentionBackwardArgs& args,
                             KernelContext& /*context*/) {
  const AttentionArgs& forward = args.forward;
  const AttentionGradients result = AttentionBackward(args);
  const KernelShape of_q = ShapeOfHeads(forward.batch, forward.q_len,
                                        forward.q_heads, forward.head_dim);
  const KernelShape of_k = ShapeOfHeads(forward.batch, forward.kv_len,
                                        forward.kv_heads, forward.head_dim);
  PutAll(of_q, HeadsOut(args.dq, forward.dtype), result.dq);
  PutAll(of_k, HeadsOut(args.dk, forward.dtype), result.dk);
  PutAll(of_k, HeadsOut(args.dv, forward.dtype), result.dv);
}

void RopeKernel(const RopeArgs& args, KernelContext& /*context*/) {
  const int64_t half = args.head_dim / 2;
  ForEachElement(
      ShapeOfHeads(args.batch, args.time, args.heads, half),
      [&](const int64_t* at) {
        const auto [b, t, h, d] = std::array{at[0], at[1], at[2], at[3]};
        const int64_t from = b * args.x.batch_stride + t * args.x.time_stride +
                             h * args.x.head_stride + d;
        const int64_t to = b * args.out.batch_stride +
                           t * args.out.time_stride + h * args.out.head_stride +
                           d;
        const int64_t angle = b * args.table_batch_stride + t * half + d;
        const Real cos = ReadElement(args.cos, DType::kFloat32, angle);
        const Real sin = ReadElement(args.sin, DType::kFloat32, angle) *
                         (args.inverse ? -1 : 1);
        const Real x = ReadElement(args.x.data, args.dtype, from);
        const Real y = ReadElement(args.x.data, args.dtype, from + half);
        WriteElement(args.out.data, args.dtype, to, x * cos - y * sin);
        WriteElement(args.out.data, args.dtype, to + half, y * cos + x * sin);
      });
}

}  // namespace crosshatch::reference
