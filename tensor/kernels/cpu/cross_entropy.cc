// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/kernels/cpu/targets.h"
// Before the headers that are compiled once for each target.
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/kernels/cpu/entry_points.h"
#include "crosshatch/tensor/kernels/cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/kernels/cpu/cross_entropy.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "crosshatch/tensor/kernels/cpu/row-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace crosshatch {
namespace HWY_NAMESPACE {
namespace {

int64_t Target(const TargetsInput& targets, int64_t r) {
  switch (targets.dtype) {
    case DType::kInt32:
      return static_cast<const int32_t*>(targets.data)[r];
    case DType::kUInt16:
      return static_cast<const uint16_t*>(targets.data)[r];
    default:
      CH_CHECK(targets.dtype == DType::kInt64)
          << "cross_entropy kernel: targets of " << Name(targets.dtype);
      return static_cast<const int64_t*>(targets.data)[r];
  }
}

template <typename T>
T Picked(const RowsInput& logits, DType dtype, int64_t r, int64_t col) {
  T value;
  LoadRun(internal::ElementAt(logits.data, dtype, r * logits.row_stride + col),
          dtype, 1, 1, &value);
  return value;
}

template <typename T>
void CrossEntropyAs(const CrossEntropyArgs& args, KernelContext& context) {
  internal::ForRanges(
      context, args.rows, args.cols * 2,
      [&](int64_t begin, int64_t end) HWY_ATTR {
        for (int64_t r = begin; r < end; ++r) {
          RowReader<T> x(args.logits, args.dtype, r);
          const T max = ReduceRow(kReduction<MaxOp, T>, x, args.cols);
          const T logsumexp = max + std::log(SumExpRow(x, args.cols, max));
          const int64_t target = Target(args.targets, r);
          T loss = 0;
          if (target != args.targets.ignore_index) {
            CH_CHECK(target >= 0 && target < args.cols)
                << "cross_entropy kernel: target " << target << " of row " << r
                << " among " << args.cols
                << " classes, and no ignore_index, which rows without a "
                   "target have";
            loss = logsumexp - Picked<T>(args.logits, args.dtype, r, target);
          }
          static_cast<T*>(args.logsumexp)[r] = logsumexp;
          static_cast<T*>(args.loss)[r] = loss;
        }
      });
}

void CrossEntropy(const CrossEntropyArgs& args, KernelContext& context) {
  internal::DispatchFloat(args.dtype, "cross_entropy", [&](auto zero) HWY_ATTR {
    CrossEntropyAs<decltype(zero)>(args, context);
  });
}

template <typename T>
void CrossEntropyShardAs(const CrossEntropyShardArgs& args,
                         KernelContext& context) {
  internal::ForRanges(
      context, args.rows, args.cols * 2,
      [&](int64_t begin, int64_t end) HWY_ATTR {
        for (int64_t r = begin; r < end; ++r) {
          RowReader<T> x(args.logits, args.dtype, r);
          const T max = static_cast<const T*>(args.row_max)[r];
          static_cast<T*>(args.sum_exp)[r] = SumExpRow(x, args.cols, max);
          const int64_t target = Target(args.targets, r);
          const int64_t col = target - args.first;
          const bool here = target != args.targets.ignore_index && col >= 0 &&
                            col < args.cols;
          static_cast<T*>(args.picked)[r] =
              here ? Picked<T>(args.logits, args.dtype, r, col) : T(0);
        }
      });
}

void CrossEntropyShard(const CrossEntropyShardArgs& args,
                       KernelContext& context) {
  internal::DispatchFloat(args.dtype, "cross_entropy_shard",
                          [&](auto zero) HWY_ATTR {
                            CrossEntropyShardAs<decltype(zero)>(args, context);
                          });
}

template <typename T>
void CrossEntropyBackwardAs(const CrossEntropyBackwardArgs& args,
                            KernelContext& context) {
  internal::ForRanges(
      context, args.rows, args.cols * 2,
      [&](int64_t begin, int64_t end) HWY_ATTR {
        HWY_ALIGN T buffer[kReduceRun];
        for (int64_t r = begin; r < end; ++r) {
          RowReader<T> x(args.logits, args.dtype, r);
          RowWriter<T> out(args.dlogits, args.dtype, r);
          const int64_t target = Target(args.targets, r);
          const bool ignored = target == args.targets.ignore_index;
          const T logsumexp = static_cast<const T*>(args.logsumexp)[r];
          const T grad = static_cast<const T*>(args.grad)[r * args.grad_stride];
          ForPieces(args.cols, [&](int64_t start, int64_t count) HWY_ATTR {
            T* to = out.Begin(start);
            if (ignored) {
              std::fill(to, to + count, T(0));
              out.End(start, count);
              return;
            }
            MapRun(
                [=](auto d, auto v) HWY_ATTR {
                  return ExpOfNonPositive(d, hn::Sub(v, hn::Set(d, logsumexp)));
                },
                buffer, count, x.Piece(start, count));
            const int64_t at = target - args.first - start;
            if (at >= 0 && at < count) buffer[at] -= T(1);
            for (int64_t i = 0; i < count; ++i) to[i] = buffer[i] * grad;
            out.End(start, count);
          });
        }
      });
}

void CrossEntropyBackward(const CrossEntropyBackwardArgs& args,
                          KernelContext& context) {
  internal::DispatchFloat(
      args.dtype, "cross_entropy_backward", [&](auto zero) HWY_ATTR {
        CrossEntropyBackwardAs<decltype(zero)>(args, context);
      });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace crosshatch
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace crosshatch {

HWY_EXPORT(CrossEntropy);
HWY_EXPORT(CrossEntropyShard);
HWY_EXPORT(CrossEntropyBackward);

namespace internal {

void CpuCrossEntropy(const CrossEntropyArgs& args, KernelContext& context) {
  HWY_DYNAMIC_DISPATCH(CrossEntropy)(args, context);
}
void CpuCrossEntropyShard(const CrossEntropyShardArgs& args,
                          KernelContext& context) {
  HWY_DYNAMIC_DISPATCH(CrossEntropyShard)(args, context);
}
void CpuCrossEntropyBackward(const CrossEntropyBackwardArgs& args,
                             KernelContext& context) {
  HWY_DYNAMIC_DISPATCH(CrossEntropyBackward)(args, context);
}

}  // namespace internal
}  // namespace crosshatch
#endif  // HWY_ONCE
