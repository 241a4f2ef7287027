// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/kernels/cpu/targets.h"
// Before the headers that are compiled once for each target.
#include <algorithm>
#include <cstdint>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/kernels/accumulate_runs.h"
#include "crosshatch/tensor/kernels/cpu/entry_points.h"
#include "crosshatch/tensor/kernels/cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/kernels/cpu/accumulate_ranks.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "crosshatch/tensor/kernels/cpu/reduce_run-inl.h"
#include "crosshatch/tensor/kernels/cpu/staging-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace crosshatch {
namespace HWY_NAMESPACE {
namespace {

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
  switch (internal::ComputeTypeOf(args.dtype)) {
    case internal::ComputeType::kFloat:
      return AccumulateAs<float>(args, context);
    case internal::ComputeType::kDouble:
      return AccumulateAs<double>(args, context);
    case internal::ComputeType::kInteger:
      return AccumulateAs<int64_t>(args, context);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace crosshatch
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace crosshatch {

HWY_EXPORT(AccumulateRanks);

namespace internal {

void CpuAccumulateRanks(const AccumulateRanksArgs& args,
                        KernelContext& context) {
  CH_CHECK_GE(args.num_sources, 1) << "accumulate_ranks kernel";
  CH_CHECK(IsFloatingPoint(args.dtype) || args.scale == 1)
      << "accumulate_ranks kernel: scales " << Name(args.dtype);
  ForEachRun(args, [&](const AccumulateRanksArgs& run) {
    HWY_DYNAMIC_DISPATCH(AccumulateRanks)(run, context);
  });
}

}  // namespace internal
}  // namespace crosshatch
#endif  // HWY_ONCE
