// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/kernels/cpu/targets.h"
// Before the headers that are compiled once for each target.
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/kernels/accumulate_runs.h"
#include "crosshatch/tensor/kernels/cpu/entry_points.h"
#include "crosshatch/tensor/kernels/cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/kernels/cpu/training.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "crosshatch/tensor/kernels/cpu/reduce_run-inl.h"
#include "crosshatch/tensor/kernels/cpu/staging-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace crosshatch {
namespace HWY_NAMESPACE {
namespace {

void AdamW(const AdamWArgs& args, KernelContext& context) {
  const float grad_scale = args.grad_scale != nullptr ? *args.grad_scale : 1.0f;
  const auto decay = static_cast<float>(1 - args.lr * args.weight_decay);
  const auto weight1 = static_cast<float>(1 - args.beta1);
  const auto beta2 = static_cast<float>(args.beta2);
  const auto weight2 = static_cast<float>(1 - args.beta2);
  const auto eps = static_cast<float>(args.eps);
  const auto step = static_cast<float>(args.lr / args.bias_correction1);
  const auto root2 = static_cast<float>(std::sqrt(args.bias_correction2));
  // Interpolates from the nearer end, as torch.lerp does.
  const bool from_average = weight1 < 0.5f;

  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto update = [&](float* param, const float* grad, float* exp_avg,
                          float* exp_avg_sq) HWY_ATTR {
    auto p = hn::LoadU(d, param);
    auto m = hn::LoadU(d, exp_avg);
    auto v = hn::LoadU(d, exp_avg_sq);
    const auto g = hn::Mul(hn::LoadU(d, grad), hn::Set(d, grad_scale));
    p = hn::Mul(p, hn::Set(d, decay));
    const auto change = hn::Sub(g, m);
    m = from_average ? hn::Add(m, hn::Mul(hn::Set(d, weight1), change))
                     : hn::Sub(g, hn::Mul(change, hn::Set(d, 1.0f - weight1)));
    v = hn::Add(hn::Mul(v, hn::Set(d, beta2)),
                hn::Mul(hn::Mul(hn::Set(d, weight2), g), g));
    const auto denominator =
        hn::Add(hn::Div(hn::Sqrt(v), hn::Set(d, root2)), hn::Set(d, eps));
    p = hn::Sub(p, hn::Div(hn::Mul(hn::Set(d, step), m), denominator));
    hn::StoreU(p, d, param);
    hn::StoreU(m, d, exp_avg);
    hn::StoreU(v, d, exp_avg_sq);
  };
  internal::ForRanges(
      context, args.count, 1, [&](int64_t begin, int64_t end) HWY_ATTR {
        int64_t i = begin;
        for (; i + lanes <= end; i += lanes) {
          update(args.param + i, args.grad + i, args.exp_avg + i,
                 args.exp_avg_sq + i);
        }
        if (i == end) return;
        HWY_ALIGN float pad[4][HWY_MAX_BYTES / sizeof(float)] = {};
        std::copy(args.param + i, args.param + end, pad[0]);
        std::copy(args.grad + i, args.grad + end, pad[1]);
        std::copy(args.exp_avg + i, args.exp_avg + end, pad[2]);
        std::copy(args.exp_avg_sq + i, args.exp_avg_sq + end, pad[3]);
        update(pad[0], pad[1], pad[2], pad[3]);
        std::copy(pad[0], pad[0] + (end - i), args.param + i);
        std::copy(pad[2], pad[2] + (end - i), args.exp_avg + i);
        std::copy(pad[3], pad[3] + (end - i), args.exp_avg_sq + i);
      });
}

template <class Op, typename C>
void Combine(C* HWY_RESTRICT sum, const C* HWY_RESTRICT next, int64_t count) {
  for (int64_t i = 0; i < count; ++i) sum[i] = Op::Combine(sum[i], next[i]);
}

template <typename C>
void CombineBy(ReduceOp op, C* sum, const C* next, int64_t count) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg:
      return Combine<SumOp>(sum, next, count);
    case ReduceOp::kProduct:
      return Combine<ProductOp>(sum, next, count);
    case ReduceOp::kMin:
      return Combine<MinOp>(sum, next, count);
    case ReduceOp::kMax:
      return Combine<MaxOp>(sum, next, count);
  }
}

template <typename C>
void AccumulateAs(const AccumulateRanksArgs& args, KernelContext& context) {
  constexpr int64_t kPiece = 1024;
  const auto scale = static_cast<C>(args.scale);
  internal::ForRanges(
      context, args.count, args.num_sources,
      [&](int64_t begin, int64_t end) HWY_ATTR {
        HWY_ALIGN C sum[kPiece];
        HWY_ALIGN C buffer[kPiece];
        for (int64_t at = begin; at < end; at += kPiece) {
          const int64_t count = std::min(kPiece, end - at);
          LoadRun(internal::ElementAt(args.sources[0], args.dtype, at),
                  args.dtype, 1, count, sum);
          for (int s = 1; s < args.num_sources; ++s) {
            const void* from =
                internal::ElementAt(args.sources[s], args.dtype, at);
            CombineBy(args.op, sum, Staged(from, args.dtype, count, buffer),
                      count);
          }
          if (args.op == ReduceOp::kAvg) {
            const auto ranks = static_cast<C>(args.num_sources);
            for (int64_t i = 0; i < count; ++i) sum[i] /= ranks;
          }
          if (scale != C(1)) {
            for (int64_t i = 0; i < count; ++i) sum[i] *= scale;
          }
          StoreRun(sum, internal::ElementAt(args.out, args.out_dtype, at),
                   args.out_dtype, 1, count);
        }
      });
}

void AccumulateRanks(const AccumulateRanksArgs& args, KernelContext& context) {
  CH_CHECK_GE(args.num_sources, 1) << "accumulate_ranks kernel";
  CH_CHECK(IsFloatingPoint(args.dtype) || args.scale == 1)
      << "accumulate_ranks kernel: scales " << Name(args.dtype);
  internal::DispatchCompute(args.dtype, [&](auto zero) HWY_ATTR {
    internal::ForEachRun(args, [&](const AccumulateRanksArgs& run) HWY_ATTR {
      AccumulateAs<decltype(zero)>(run, context);
    });
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace crosshatch
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace crosshatch {

CH_CPU_KERNEL(AdamW)
CH_CPU_KERNEL(AccumulateRanks)

}  // namespace crosshatch
#endif  // HWY_ONCE
