// SPDX-License-Identifier: Apache-2.0
// Kernels of training, and random numbers.
#include <cmath>
#include <cstddef>

#include "crosshatch/base/check.h"
#include "crosshatch/base/reduce_op.h"
#include "crosshatch/tensor/backends/reference/elements.h"
#include "crosshatch/tensor/backends/reference/entry_points.h"
#include "crosshatch/tensor/kernels/philox.h"
#include "crosshatch/tensor/kernels/reference/pointwise.h"

namespace crosshatch::reference {
namespace {

/// The words of the element of index `element` in its tensor.
auto WordsOf(uint64_t key, uint64_t stream, int64_t element) {
  const auto e = static_cast<uint64_t>(element);
  return internal::Philox(
      {static_cast<uint32_t>(e), static_cast<uint32_t>(e >> 32),
       static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32)},
      {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)});
}

/// The row-major index in the global tensor of what has `at` in the part that
/// starts at `offsets`.
int64_t GlobalIndex(const KernelShape& shape, const int64_t* at,
                    const int64_t* offsets, const int64_t* global_sizes) {
  int64_t index = 0;
  for (int d = 0; d < shape.ndim; ++d) {
    index = index * global_sizes[d] + offsets[d] + at[d];
  }
  return index;
}

BinaryOp Step(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg:
      return BinaryOp::kAdd;
    case ReduceOp::kProduct:
      return BinaryOp::kMul;
    case ReduceOp::kMin:
      return BinaryOp::kMin;
    case ReduceOp::kMax:
      return BinaryOp::kMax;
  }
  return BinaryOp::kAdd;
}

int64_t IntegerStep(ReduceOp op, int64_t a, int64_t b) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg:
      return Plus(a, b);
    case ReduceOp::kProduct:
      return Times(a, b);
    case ReduceOp::kMin:
      return a < b ? a : b;
    case ReduceOp::kMax:
      return a > b ? a : b;
  }
  return a;
}

}  // namespace

void AdamWKernel(const AdamWArgs& args, KernelContext& /*context*/) {
  constexpr DType kType = DType::kFloat32;
  const Real grad_scale = args.grad_scale == nullptr
                              ? Real{1}
                              : ReadElement(args.grad_scale, kType, 0);
  for (int64_t i = 0; i < args.count; ++i) {
    const Real grad = ReadElement(args.grad, kType, i) * grad_scale;
    Real p = ReadElement(args.param, kType, i);
    Real m = ReadElement(args.exp_avg, kType, i);
    Real v = ReadElement(args.exp_avg_sq, kType, i);
    p *= 1 - Real{args.lr} * args.weight_decay;
    m += (1 - Real{args.beta1}) * (grad - m);
    v = args.beta2 * v + (1 - Real{args.beta2}) * grad * grad;
    p -= args.lr / args.bias_correction1 * m /
         (std::sqrt(v) / std::sqrt(Real{args.bias_correction2}) + args.eps);
    WriteElement(args.param, kType, i, p);
    WriteElement(args.exp_avg, kType, i, m);
    WriteElement(args.exp_avg_sq, kType, i, v);
  }
}

void RandomKernel(const RandomArgs& args, KernelContext& /*context*/) {
  const bool uniform = args.kind == RandomKind::kUniform;
  const auto offset = static_cast<float>(args.a);
  const auto factor = static_cast<float>(uniform ? args.b - args.a : args.b);
  int64_t next = 0;
  ForEachElement(args.box, [&](const int64_t* at) {
    const auto words =
        WordsOf(args.key, args.stream,
                GlobalIndex(args.box, at, args.offsets, args.global_sizes));
    const float value = uniform ? internal::UniformOf(words[0])
                                : internal::NormalOf(words[0], words[1]);
    WriteElement(args.out, args.dtype, next++,
                 Real{std::fma(factor, value, offset)});
  });
}

void DropoutKernel(const DropoutArgs& args, KernelContext& /*context*/) {
  const auto bound =
      static_cast<float>(std::ceil(args.p * 0x1.0p24) * 0x1.0p-24);
  const Real scale =
      ComputeScalar(args.x.dtype, args.p < 1 ? 1 / (1 - args.p) : 0);
  int64_t next = 0;
  ForEachElement(args.shape, [&](const int64_t* at) {
    const auto words =
        WordsOf(args.key, args.stream,
                GlobalIndex(args.shape, at, args.offsets, args.global_sizes));
    const Real x = ReadElement(args.x.data, args.x.dtype,
                               OffsetOf(args.shape, at, args.x.strides));
    WriteElement(args.out, args.x.dtype, next++,
                 internal::UniformOf(words[0]) >= bound ? x * scale : 0);
  });
}

void AccumulateRanksKernel(const AccumulateRanksArgs& args,
                           KernelContext& /*context*/) {
  CH_CHECK_GE(args.num_sources, 1) << "accumulate_ranks kernel";
  for (int64_t i = 0; i < args.runs * args.count; ++i) {
    const int64_t run = i / args.count;
    const int64_t in_run = i % args.count;
    const auto from = [&](int s) {
      return run == 0 ? in_run : run * args.source_strides[s] + in_run;
    };
    const int64_t to = run * args.out_stride + in_run;
    if (IsInteger(args.dtype)) {
      int64_t sum = ReadInteger(args.sources[0], args.dtype, from(0));
      for (int s = 1; s < args.num_sources; ++s) {
        sum = IntegerStep(args.op, sum,
                          ReadInteger(args.sources[s], args.dtype, from(s)));
      }
      if (args.op == ReduceOp::kAvg) sum /= args.num_sources;
      WriteInteger(args.out, args.out_dtype, to, sum);
      continue;
    }
    Real sum = ReadElement(args.sources[0], args.dtype, from(0));
    for (int s = 1; s < args.num_sources; ++s) {
      sum = Binary(Step(args.op), sum,
                   ReadElement(args.sources[s], args.dtype, from(s)), 1);
    }
    if (args.op == ReduceOp::kAvg) sum /= args.num_sources;
    WriteElement(args.out, args.out_dtype, to, sum * args.scale);
  }
}

}  // namespace crosshatch::reference
