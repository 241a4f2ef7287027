// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/kernels/cpu/targets.h"
// Before the headers that are compiled once for each target.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/kernels/cpu/entry_points.h"
#include "crosshatch/tensor/kernels/cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/kernels/cpu/reduce.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "crosshatch/tensor/kernels/cpu/reduce_run-inl.h"
#include "crosshatch/tensor/kernels/cpu/staging-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace crosshatch {
namespace HWY_NAMESPACE {
namespace {

using internal::RowCursor;
using internal::StridedLoop;

/// The input's dims, split into kept and reduced ones.
struct Plan {
  StridedLoop kept;     ///< Operand 0: the input, 1: the output.
  StridedLoop reduced;  ///< Operand 0: the input.
  int64_t outputs;
  int64_t terms;
};

Plan MakePlan(const ReduceArgs& args) {
  KernelShape kept, reduced;
  int64_t kept_in[kMaxKernelDims] = {};
  int64_t kept_out[kMaxKernelDims] = {};
  int64_t reduced_in[kMaxKernelDims] = {};
  for (int d = 0; d < args.shape.ndim; ++d) {
    if ((args.reduced >> d) & 1u) {
      reduced.sizes[reduced.ndim] = args.shape.sizes[d];
      reduced_in[reduced.ndim++] = args.in.strides[d];
    } else {
      kept.sizes[kept.ndim] = args.shape.sizes[d];
      kept_in[kept.ndim] = args.in.strides[d];
      kept_out[kept.ndim++] = args.out.strides[d];
    }
  }
  Plan plan;
  // The order of the reduced dims determines the tree of the sum: the order of
  // the dims.
  plan.reduced = StridedLoop::Make(reduced, {reduced_in}, -1);
  plan.kept = StridedLoop::Make(kept, {kept_in, kept_out}, 1);
  plan.outputs = plan.kept.total();
  plan.terms = plan.reduced.total();
  return plan;
}

int64_t OffsetOf(const StridedLoop& loop, int operand, int64_t index) {
  const RowCursor cursor(loop, index / loop.inner());
  return cursor.offset(operand) +
         index % loop.inner() * loop.inner_stride(operand);
}

/// Copies terms [begin, begin + count) of one output into a buffer, or returns
/// their address if they are contiguous.
template <typename C>
const C* Terms(const StridedLoop& reduced, const void* base, DType dtype,
               int64_t begin, int64_t count, C* buffer) {
  const int64_t inner = reduced.inner();
  const int64_t stride = reduced.inner_stride(0);
  RowCursor cursor(reduced, begin / inner);
  int64_t start = begin % inner;
  for (int64_t done = 0; done < count;) {
    const int64_t run = std::min(count - done, inner - start);
    const void* from =
        internal::ElementAt(base, dtype, cursor.offset(0) + start * stride);
    if (run == count && stride == 1 && dtype == DTypeOf<C>) {
      return static_cast<const C*>(from);
    }
    LoadRun(from, dtype, stride, run, buffer + done);
    done += run;
    start = 0;
    cursor.Next();
  }
  return buffer;
}

/// Reduces terms [begin, end) of one output, one run after the other.
template <typename C>
C ReduceTerms(const Reduction<C>& op, const StridedLoop& reduced,
              const void* base, DType dtype, int64_t begin, int64_t end) {
  HWY_ALIGN C buffer[kReduceRun];
  PairwiseStack<C> stack(op);
  for (int64_t at = begin; at < end; at += kReduceRun) {
    const int64_t count = std::min(kReduceRun, end - at);
    stack.Push(op.run(Terms(reduced, base, dtype, at, count, buffer), count));
  }
  return stack.Total();
}

template <typename C>
C Finish(const ReduceArgs& args, int64_t terms, C value) {
  if (args.kind != ReduceKind::kMean) return value;
  if constexpr (std::is_integral_v<C>) {
    return terms == 0 ? 0 : value / terms;
  } else {
    return value / static_cast<C>(terms);
  }
}

template <typename C>
void Write(const ReduceArgs& args, const Plan& plan, int64_t output, C value) {
  void* to = internal::ElementAt(args.out.data, args.out.dtype,
                                 OffsetOf(plan.kept, 1, output));
  value = Finish(args, plan.terms, value);
  if (args.mode == WriteMode::kAccumulate) {
    C old;
    LoadRun(to, args.out.dtype, 1, 1, &old);
    value = SumOp::Combine(old, value);
  }
  StoreRun(&value, to, args.out.dtype, 1, 1);
}

/// Reduces few outputs of many terms, distributing the terms of each over
/// threads.
template <typename C>
void ReduceLong(const Reduction<C>& op, const ReduceArgs& args,
                const Plan& plan, KernelContext& context) {
  constexpr int64_t kTermsPerPart = 64 * kReduceRun;
  const int64_t parts =
      std::clamp<int64_t>(plan.terms / kTermsPerPart, 1, internal::kMaxParts);
  const int64_t runs = (plan.terms + kReduceRun - 1) / kReduceRun;
  for (int64_t output = 0; output < plan.outputs; ++output) {
    const void* base = internal::ElementAt(args.in.data, args.in.dtype,
                                           OffsetOf(plan.kept, 0, output));
    C partial[internal::kMaxParts];
    internal::ForParts(context, parts, [&](int64_t part) HWY_ATTR {
      const auto range = internal::RangeOfPart(runs, parts, part);
      partial[part] = ReduceTerms(op, plan.reduced, base, args.in.dtype,
                                  range.begin * kReduceRun,
                                  std::min(plan.terms, range.end * kReduceRun));
    });
    PairwiseStack<C> stack(op);
    for (int64_t part = 0; part < parts; ++part) stack.Push(partial[part]);
    Write(args, plan, output, stack.Total());
  }
}

/// Reduces one output after another, distributed over threads.
template <typename C>
void ReduceRows(const Reduction<C>& op, const ReduceArgs& args,
                const Plan& plan, KernelContext& context) {
  internal::ForRanges(context, plan.outputs, plan.terms / 4 + 8,
                      [&](int64_t begin, int64_t end) HWY_ATTR {
                        for (int64_t output = begin; output < end; ++output) {
                          const void* base = internal::ElementAt(
                              args.in.data, args.in.dtype,
                              OffsetOf(plan.kept, 0, output));
                          Write(args, plan, output,
                                ReduceTerms(op, plan.reduced, base,
                                            args.in.dtype, 0, plan.terms));
                        }
                      });
}

/// Reduces outputs that are adjacent in the input, a whole row at a time.
template <typename C>
void ReduceColumns(const Reduction<C>& op, const ReduceArgs& args,
                   const Plan& plan, KernelContext& context) {
  constexpr int64_t kColumns = ColumnStack<C>::kColumns;
  const int64_t inner = plan.kept.inner();
  const int64_t tiles = (inner + kColumns - 1) / kColumns;
  internal::ForRanges(
      context, plan.kept.rows() * tiles, plan.terms * kColumns / 4 + 64,
      [&](int64_t begin, int64_t end) HWY_ATTR {
        HWY_ALIGN C buffer[kColumns];
        ColumnStack<C> stack(op);
        for (int64_t unit = begin; unit < end; ++unit) {
          const int64_t start = unit % tiles * kColumns;
          const int64_t columns = std::min(kColumns, inner - start);
          const int64_t first = unit / tiles * inner + start;
          const void* base = internal::ElementAt(args.in.data, args.in.dtype,
                                                 OffsetOf(plan.kept, 0, first));
          stack.Clear();
          RowCursor cursor(plan.reduced, 0);
          int64_t in_row = 0;
          for (int64_t term = 0; term < plan.terms; ++term) {
            const void* from = internal::ElementAt(
                base, args.in.dtype,
                cursor.offset(0) + in_row * plan.reduced.inner_stride(0));
            stack.Push(Staged(from, args.in.dtype, columns, buffer), columns);
            if (++in_row == plan.reduced.inner()) {
              in_row = 0;
              cursor.Next();
            }
          }
          const C* total = stack.Total(columns);
          void* to = internal::ElementAt(args.out.data, args.out.dtype,
                                         OffsetOf(plan.kept, 1, first));
          const int64_t stride = plan.kept.inner_stride(1);
          if (args.mode == WriteMode::kAccumulate) {
            LoadRun(to, args.out.dtype, stride, columns, buffer);
          }
          HWY_ALIGN C results[kColumns];
          for (int64_t i = 0; i < columns; ++i) {
            results[i] = Finish(args, plan.terms, total[i]);
            if (args.mode == WriteMode::kAccumulate) {
              results[i] = SumOp::Combine(buffer[i], results[i]);
            }
          }
          StoreRun(results, to, args.out.dtype, stride, columns);
        }
      });
}

/// Writes the extreme of no terms. Integers are reduced as i64, whose limit a
/// narrower out would wrap.
void ReduceNothing(const ReduceArgs& args, const Plan& plan) {
  internal::DispatchDType(args.out.dtype, [&](auto element) {
    using T = decltype(element);
    if constexpr (std::is_integral_v<T>) {
      using Limits = std::numeric_limits<T>;
      const T limit =
          args.kind == ReduceKind::kMax ? Limits::lowest() : Limits::max();
      for (int64_t output = 0; output < plan.outputs; ++output) {
        static_cast<T*>(args.out.data)[OffsetOf(plan.kept, 1, output)] = limit;
      }
    }
  });
}

template <typename C>
void ReduceAs(const Reduction<C>& op, const ReduceArgs& args,
              KernelContext& context) {
  const Plan plan = MakePlan(args);
  if (plan.outputs == 0) return;
  if (std::is_integral_v<C> && plan.terms == 0 &&
      (args.kind == ReduceKind::kMax || args.kind == ReduceKind::kMin)) {
    return ReduceNothing(args, plan);
  }
  const bool side_by_side = plan.kept.inner_stride(0) == 1 &&
                            plan.kept.inner() >= 8 && plan.terms > 1 &&
                            plan.reduced.inner_stride(0) != 1;
  if (side_by_side) {
    ReduceColumns(op, args, plan, context);
  } else if (plan.outputs < 16) {
    ReduceLong(op, args, plan, context);
  } else {
    ReduceRows(op, args, plan, context);
  }
}

/// Finds the index of the extreme term. NaN is the most extreme, and the first
/// of equals wins.
template <typename C>
void ArgReduce(const ReduceArgs& args, KernelContext& context) {
  const Plan plan = MakePlan(args);
  if (plan.outputs == 0) return;
  CH_CHECK(plan.terms > 0) << "argmax or argmin kernel of no elements";
  const bool largest = args.kind == ReduceKind::kArgMax;
  internal::ForRanges(
      context, plan.outputs, plan.terms,
      [&](int64_t begin, int64_t end) HWY_ATTR {
        HWY_ALIGN C buffer[kReduceRun];
        for (int64_t output = begin; output < end; ++output) {
          const void* base = internal::ElementAt(
              args.in.data, args.in.dtype, OffsetOf(plan.kept, 0, output));
          int64_t best_index = -1;
          C best = 0;
          for (int64_t at = 0; at < plan.terms; at += kReduceRun) {
            const int64_t count = std::min(kReduceRun, plan.terms - at);
            const C* terms =
                Terms(plan.reduced, base, args.in.dtype, at, count, buffer);
            for (int64_t i = 0; i < count; ++i) {
              const bool is_nan = terms[i] != terms[i];
              const bool best_is_nan = best != best;
              const bool beats =
                  best_index < 0 ||
                  (!best_is_nan &&
                   (is_nan || (largest ? terms[i] > best : terms[i] < best)));
              if (beats) {
                best = terms[i];
                best_index = at + i;
              }
            }
          }
          StoreRun(&best_index,
                   internal::ElementAt(args.out.data, args.out.dtype,
                                       OffsetOf(plan.kept, 1, output)),
                   args.out.dtype, 1, 1);
        }
      });
}

template <typename C>
void ReduceKindAs(const ReduceArgs& args, KernelContext& context) {
  switch (args.kind) {
    case ReduceKind::kSum:
    case ReduceKind::kMean:
      return ReduceAs(kReduction<SumOp, C>, args, context);
    case ReduceKind::kProduct:
      return ReduceAs(kReduction<ProductOp, C>, args, context);
    case ReduceKind::kMax:
      return ReduceAs(kReduction<MaxOp, C>, args, context);
    case ReduceKind::kMin:
      return ReduceAs(kReduction<MinOp, C>, args, context);
    case ReduceKind::kSumOfSquares:
      return ReduceAs(kReduction<SumOfSquaresOp, C>, args, context);
    case ReduceKind::kArgMax:
    case ReduceKind::kArgMin:
      return ArgReduce<C>(args, context);
  }
}

void Reduce(const ReduceArgs& args, KernelContext& context) {
  const bool in_double =
      args.in.dtype == DType::kFloat64 || args.out.dtype == DType::kFloat64;
  internal::DispatchCompute(
      in_double ? DType::kFloat64 : args.in.dtype,
      [&](auto zero) HWY_ATTR { ReduceKindAs<decltype(zero)>(args, context); });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace crosshatch
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace crosshatch {

CH_CPU_KERNEL(Reduce)

}  // namespace crosshatch
#endif  // HWY_ONCE
