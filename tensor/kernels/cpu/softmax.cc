// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/kernels/cpu/targets.h"
// Before the headers that are compiled once for each target.
#include <cmath>
#include <cstdint>

#include "crosshatch/tensor/kernels/cpu/entry_points.h"
#include "crosshatch/tensor/kernels/cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/kernels/cpu/softmax.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "crosshatch/tensor/kernels/cpu/row-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace crosshatch {
namespace HWY_NAMESPACE {
namespace {

template <typename T>
void SoftmaxAs(const SoftmaxArgs& args, KernelContext& context) {
  internal::ForRanges(
      context, args.rows, args.cols * 4,
      [&](int64_t begin, int64_t end) HWY_ATTR {
        for (int64_t r = begin; r < end; ++r) {
          RowReader<T> x(args.x, args.dtype, r);
          RowWriter<T> out(args.out, args.dtype, r);
          const T max = ReduceRow(kReduction<MaxOp, T>, x, args.cols);
          const T sum = SumExpRow(x, args.cols, max);
          const T factor = T(1) / sum;
          const T log_sum = std::log(sum);
          ForPieces(args.cols, [&](int64_t start, int64_t count) HWY_ATTR {
            const T* from = x.Piece(start, count);
            T* to = out.Begin(start);
            if (args.log) {
              MapRun(
                  [=](auto d, auto v) HWY_ATTR {
                    return hn::Sub(hn::Sub(v, hn::Set(d, max)),
                                   hn::Set(d, log_sum));
                  },
                  to, count, from);
            } else {
              MapRun(
                  [=](auto d, auto v) HWY_ATTR {
                    return hn::Mul(
                        ExpOfNonPositive(d, hn::Sub(v, hn::Set(d, max))),
                        hn::Set(d, factor));
                  },
                  to, count, from);
            }
            out.End(start, count);
          });
        }
      });
}

void Softmax(const SoftmaxArgs& args, KernelContext& context) {
  internal::DispatchFloat(args.dtype, "softmax", [&](auto zero) HWY_ATTR {
    SoftmaxAs<decltype(zero)>(args, context);
  });
}

template <typename T>
void SoftmaxBackwardAs(const SoftmaxBackwardArgs& args,
                       KernelContext& context) {
  internal::ForRanges(
      context, args.rows, args.cols * 2,
      [&](int64_t begin, int64_t end) HWY_ATTR {
        HWY_ALIGN T products[kReduceRun];
        for (int64_t r = begin; r < end; ++r) {
          RowReader<T> y(args.y, args.dtype, r);
          RowReader<T> grad(args.grad, args.dtype, r);
          RowWriter<T> dx(args.dx, args.dtype, r);
          PairwiseStack<T> stack(kReduction<SumOp, T>);
          ForPieces(args.cols, [&](int64_t start, int64_t count) HWY_ATTR {
            const T* g = grad.Piece(start, count);
            if (!args.log) {
              const T* p = y.Piece(start, count);
              for (int64_t i = 0; i < count; ++i) products[i] = g[i] * p[i];
              g = products;
            }
            stack.Push(ReduceRun<SumOp>(g, count));
          });
          const T sum = stack.Total();
          ForPieces(args.cols, [&](int64_t start, int64_t count) HWY_ATTR {
            const T* g = grad.Piece(start, count);
            const T* p = y.Piece(start, count);
            T* to = dx.Begin(start);
            if (args.log) {
              MapRun(
                  [=](auto d, auto vg, auto vy) HWY_ATTR {
                    return hn::NegMulAdd(FullExp(d, vy), hn::Set(d, sum), vg);
                  },
                  to, count, g, p);
            } else {
              MapRun(
                  [=](auto d, auto vg, auto vy) HWY_ATTR {
                    return hn::Mul(hn::Sub(vg, hn::Set(d, sum)), vy);
                  },
                  to, count, g, p);
            }
            dx.End(start, count);
          });
        }
      });
}

void SoftmaxBackward(const SoftmaxBackwardArgs& args, KernelContext& context) {
  internal::DispatchFloat(args.dtype, "softmax_backward",
                          [&](auto zero) HWY_ATTR {
                            SoftmaxBackwardAs<decltype(zero)>(args, context);
                          });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace crosshatch
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace crosshatch {

HWY_EXPORT(Softmax);
HWY_EXPORT(SoftmaxBackward);

namespace internal {

void CpuSoftmax(const SoftmaxArgs& args, KernelContext& context) {
  HWY_DYNAMIC_DISPATCH(Softmax)(args, context);
}
void CpuSoftmaxBackward(const SoftmaxBackwardArgs& args,
                        KernelContext& context) {
  HWY_DYNAMIC_DISPATCH(SoftmaxBackward)(args, context);
}

}  // namespace internal
}  // namespace crosshatch
#endif  // HWY_ONCE
