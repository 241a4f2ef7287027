// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/kernels/cpu/targets.h"
// Before the headers that are compiled once for each target.
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/kernels/cpu/entry_points.h"
#include "crosshatch/tensor/kernels/cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/kernels/cpu/pointwise.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "crosshatch/tensor/kernels/cpu/staging-inl.h"
#include "crosshatch/tensor/kernels/cpu/vector_math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace crosshatch {
namespace HWY_NAMESPACE {
namespace {

using internal::Blocking;
using internal::StridedLoop;

/// Calls body(block) on all blocks of the loop. `make` makes the state of one
/// part: a callable that takes a block.
template <typename Make>
void ForBlocks(KernelContext& context, const StridedLoop& loop, int64_t cost,
               Make make) {
  const Blocking blocking(loop);
  internal::ForRanges(context, blocking.blocks, Blocking::kBlock * cost / 8,
                      [&](int64_t begin, int64_t end) HWY_ATTR {
                        auto body = make();
                        for (int64_t b = begin; b < end; ++b) {
                          body(blocking.At(b));
                        }
                      });
}

// Integer arithmetic wraps, so it uses unsigned types.
int64_t WrapAdd(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) +
                              static_cast<uint64_t>(b));
}
int64_t WrapMul(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) *
                              static_cast<uint64_t>(b));
}
int64_t WrapNeg(int64_t a) {
  return static_cast<int64_t>(uint64_t{0} - static_cast<uint64_t>(a));
}

template <typename F>
void ScalarRun(F f, int64_t* to, int64_t count, const int64_t* a) {
  for (int64_t i = 0; i < count; ++i) to[i] = f(a[i]);
}
template <typename F, typename To, typename T>
void ScalarRun(F f, To* to, int64_t count, const T* a, const T* b) {
  for (int64_t i = 0; i < count; ++i) to[i] = f(a[i], b[i]);
}

// Returns NaN if either is NaN. +0 and -0 are equal.
template <class V>
HWY_INLINE V PropagatingMax(V a, V b) {
  const V larger = hn::IfThenElse(hn::Gt(a, b), a, b);
  return hn::IfThenElse(hn::IsNaN(a), a, larger);
}
template <class V>
HWY_INLINE V PropagatingMin(V a, V b) {
  const V smaller = hn::IfThenElse(hn::Lt(a, b), a, b);
  return hn::IfThenElse(hn::IsNaN(a), a, smaller);
}

template <typename T>
void UnaryRun(UnaryOp op, T scalar, T* to, int64_t count, const T* a) {
  const auto run = [&](auto f) HWY_ATTR { MapRun(f, to, count, a); };
  switch (op) {
    case UnaryOp::kNeg:
      return run([](auto, auto x) HWY_ATTR { return hn::Neg(x); });
    case UnaryOp::kAbs:
      return run([](auto, auto x) HWY_ATTR { return hn::Abs(x); });
    case UnaryOp::kSign:
      return run([](auto d, auto x) HWY_ATTR {
        const auto one = hn::CopySign(hn::Set(d, T(1)), x);
        const auto nonzero = hn::Gt(hn::Abs(x), hn::Zero(d));
        return hn::IfThenElse(nonzero, one, x);
      });
    case UnaryOp::kSquare:
      return run([](auto, auto x) HWY_ATTR { return hn::Mul(x, x); });
    case UnaryOp::kRelu:
      return run([](auto d, auto x) HWY_ATTR {
        return hn::IfThenElse(hn::Lt(x, hn::Zero(d)), hn::Zero(d), x);
      });
    case UnaryOp::kAddScalar:
      return run([scalar](auto d, auto x)
                     HWY_ATTR { return hn::Add(x, hn::Set(d, scalar)); });
    case UnaryOp::kMulScalar:
      return run([scalar](auto d, auto x)
                     HWY_ATTR { return hn::Mul(x, hn::Set(d, scalar)); });
    case UnaryOp::kScalarMinus:
      return run([scalar](auto d, auto x)
                     HWY_ATTR { return hn::Sub(hn::Set(d, scalar), x); });
    case UnaryOp::kMaxScalar:
      return run([scalar](auto d, auto x) HWY_ATTR {
        return PropagatingMax(x, hn::Set(d, scalar));
      });
    case UnaryOp::kMinScalar:
      return run([scalar](auto d, auto x) HWY_ATTR {
        return PropagatingMin(x, hn::Set(d, scalar));
      });
    case UnaryOp::kExp:
      return run([](auto d, auto x) HWY_ATTR { return FullExp(d, x); });
    case UnaryOp::kLog:
      return run([](auto d, auto x) HWY_ATTR { return FullLog(d, x); });
    case UnaryOp::kSqrt:
      return run([](auto, auto x) HWY_ATTR { return hn::Sqrt(x); });
    case UnaryOp::kRsqrt:
      return run([](auto d, auto x) HWY_ATTR {
        return hn::Div(hn::Set(d, T(1)), hn::Sqrt(x));
      });
    case UnaryOp::kReciprocal:
      return run([](auto d, auto x)
                     HWY_ATTR { return hn::Div(hn::Set(d, T(1)), x); });
    case UnaryOp::kTanh:
      return run([](auto d, auto x) HWY_ATTR { return FullTanh(d, x); });
    case UnaryOp::kSigmoid:
      return run([](auto d, auto x) HWY_ATTR { return Sigmoid(d, x); });
    case UnaryOp::kSilu:
      return run([](auto d, auto x) HWY_ATTR { return Silu(d, x); });
    case UnaryOp::kErf:
      return run([](auto d, auto x) HWY_ATTR { return Erf(d, x); });
    case UnaryOp::kGelu:
      return run([](auto d, auto x) HWY_ATTR { return Gelu(d, x); });
    case UnaryOp::kGeluExact:
      return run([](auto d, auto x) HWY_ATTR { return GeluExact(d, x); });
    case UnaryOp::kPowScalar:
      for (int64_t i = 0; i < count; ++i) to[i] = std::pow(a[i], scalar);
      return;
    case UnaryOp::kNot:
      break;
  }
  CH_CHECK(false) << "unary kernel: not an op of floating point";
}

void UnaryRun(UnaryOp op, int64_t scalar, int64_t* to, int64_t count,
              const int64_t* a) {
  switch (op) {
    case UnaryOp::kNeg:
      return ScalarRun([](int64_t x) { return WrapNeg(x); }, to, count, a);
    case UnaryOp::kAbs:
      return ScalarRun([](int64_t x) { return x < 0 ? WrapNeg(x) : x; }, to,
                       count, a);
    case UnaryOp::kSign:
      return ScalarRun([](int64_t x) { return int64_t{x > 0} - (x < 0); }, to,
                       count, a);
    case UnaryOp::kSquare:
      return ScalarRun([](int64_t x) { return WrapMul(x, x); }, to, count, a);
    case UnaryOp::kRelu:
      return ScalarRun([](int64_t x) { return x < 0 ? 0 : x; }, to, count, a);
    case UnaryOp::kAddScalar:
      return ScalarRun([=](int64_t x) { return WrapAdd(x, scalar); }, to, count,
                       a);
    case UnaryOp::kMulScalar:
      return ScalarRun([=](int64_t x) { return WrapMul(x, scalar); }, to, count,
                       a);
    case UnaryOp::kScalarMinus:
      return ScalarRun([=](int64_t x) { return WrapAdd(scalar, WrapNeg(x)); },
                       to, count, a);
    case UnaryOp::kMaxScalar:
      return ScalarRun([=](int64_t x) { return x > scalar ? x : scalar; }, to,
                       count, a);
    case UnaryOp::kMinScalar:
      return ScalarRun([=](int64_t x) { return x < scalar ? x : scalar; }, to,
                       count, a);
    case UnaryOp::kNot:
      return ScalarRun([](int64_t x) { return int64_t{x == 0}; }, to, count, a);
    default:
      break;
  }
  CH_CHECK(false) << "unary kernel: not an op of integers";
}

template <typename C>
void UnaryAs(const UnaryArgs& args, KernelContext& context) {
  const auto loop =
      StridedLoop::Make(args.shape, {args.out.strides, args.a.strides}, 0);
  const auto scalar = static_cast<C>(args.scalar);
  const int64_t cost = args.op >= UnaryOp::kExp ? 16 : 4;
  ForBlocks(context, loop, cost, [&]() HWY_ATTR {
    return [&args, &loop, scalar, a = StagedInput<C>(args.a, loop, 1),
            out = StagedOutput<C>(args.out, args.mode, loop, 0)](
               const Blocking::Block& block) mutable HWY_ATTR {
      const C* from = a.Load(loop, block);
      UnaryRun(args.op, scalar, out.Begin(loop, block),
               block.rows * block.count, from);
      out.End(loop, block);
    };
  });
}

CH_COMPUTE_KERNEL(Unary, args.a.dtype)

template <typename T>
void BinaryRun(BinaryOp op, T alpha, T* to, int64_t count, const T* a,
               const T* b) {
  const auto run = [&](auto f) HWY_ATTR { MapRun(f, to, count, a, b); };
  const auto one_or_zero = [](auto d, auto mask) HWY_ATTR {
    return hn::IfThenElseZero(mask, hn::Set(d, T(1)));
  };
  switch (op) {
    case BinaryOp::kAdd:
    case BinaryOp::kSub: {
      const T factor = op == BinaryOp::kAdd ? alpha : -alpha;
      if (factor == T(1)) {
        return run([](auto, auto x, auto y) HWY_ATTR { return hn::Add(x, y); });
      }
      return run([factor](auto d, auto x, auto y) HWY_ATTR {
        return hn::Add(x, hn::Mul(hn::Set(d, factor), y));
      });
    }
    case BinaryOp::kMul:
      return run([](auto, auto x, auto y) HWY_ATTR { return hn::Mul(x, y); });
    case BinaryOp::kDiv:
      return run([](auto, auto x, auto y) HWY_ATTR { return hn::Div(x, y); });
    case BinaryOp::kMax:
      return run([](auto, auto x, auto y)
                     HWY_ATTR { return PropagatingMax(x, y); });
    case BinaryOp::kMin:
      return run([](auto, auto x, auto y)
                     HWY_ATTR { return PropagatingMin(x, y); });
    case BinaryOp::kPow:
      return ScalarRun([](T x, T y) { return std::pow(x, y); }, to, count, a,
                       b);
    case BinaryOp::kReluBackward:
      return run([](auto d, auto g, auto x) HWY_ATTR {
        return hn::IfThenZeroElse(hn::Le(x, hn::Zero(d)), g);
      });
    case BinaryOp::kSiluBackward:
      return run([](auto d, auto g, auto x)
                     HWY_ATTR { return hn::Mul(g, SiluDerivative(d, x)); });
    case BinaryOp::kGeluBackward:
      return run([](auto d, auto g, auto x)
                     HWY_ATTR { return hn::Mul(g, GeluDerivative(d, x)); });
    case BinaryOp::kGeluExactBackward:
      return run([](auto d, auto g, auto x) HWY_ATTR {
        return hn::Mul(g, GeluExactDerivative(d, x));
      });
    case BinaryOp::kTanhBackward:
      return run([](auto d, auto g, auto y) HWY_ATTR {
        return hn::Mul(g, hn::NegMulAdd(y, y, hn::Set(d, T(1))));
      });
    case BinaryOp::kSigmoidBackward:
      return run([](auto d, auto g, auto y) HWY_ATTR {
        return hn::Mul(g, hn::Mul(y, hn::Sub(hn::Set(d, T(1)), y)));
      });
    case BinaryOp::kEqual:
      return run([&](auto d, auto x, auto y)
                     HWY_ATTR { return one_or_zero(d, hn::Eq(x, y)); });
    case BinaryOp::kNotEqual:
      return run([&](auto d, auto x, auto y) HWY_ATTR {
        return one_or_zero(d, hn::Not(hn::Eq(x, y)));
      });
    case BinaryOp::kLess:
      return run([&](auto d, auto x, auto y)
                     HWY_ATTR { return one_or_zero(d, hn::Lt(x, y)); });
    case BinaryOp::kLessEqual:
      return run([&](auto d, auto x, auto y)
                     HWY_ATTR { return one_or_zero(d, hn::Le(x, y)); });
    case BinaryOp::kGreater:
      return run([&](auto d, auto x, auto y)
                     HWY_ATTR { return one_or_zero(d, hn::Gt(x, y)); });
    case BinaryOp::kGreaterEqual:
      return run([&](auto d, auto x, auto y)
                     HWY_ATTR { return one_or_zero(d, hn::Ge(x, y)); });
    case BinaryOp::kAnd:
    case BinaryOp::kOr:
      break;
  }
  CH_CHECK(false) << "binary kernel: not an op of floating point";
}

void BinaryRun(BinaryOp op, int64_t alpha, int64_t* to, int64_t count,
               const int64_t* a, const int64_t* b) {
  using I = int64_t;
  const auto run = [&](auto f) { ScalarRun(f, to, count, a, b); };
  switch (op) {
    case BinaryOp::kAdd:
      return run([=](I x, I y) { return WrapAdd(x, WrapMul(alpha, y)); });
    case BinaryOp::kSub:
      return run(
          [=](I x, I y) { return WrapAdd(x, WrapNeg(WrapMul(alpha, y))); });
    case BinaryOp::kMul:
      return run([](I x, I y) { return WrapMul(x, y); });
    case BinaryOp::kDiv:
      // -1 is separate because the lowest integer has no positive counterpart.
      return run([](I x, I y) {
        return y == 0 ? 0 : y == -1 ? WrapNeg(x) : x / y;
      });
    case BinaryOp::kMax:
      return run([](I x, I y) { return x > y ? x : y; });
    case BinaryOp::kMin:
      return run([](I x, I y) { return x < y ? x : y; });
    case BinaryOp::kEqual:
      return run([](I x, I y) { return I{x == y}; });
    case BinaryOp::kNotEqual:
      return run([](I x, I y) { return I{x != y}; });
    case BinaryOp::kLess:
      return run([](I x, I y) { return I{x < y}; });
    case BinaryOp::kLessEqual:
      return run([](I x, I y) { return I{x <= y}; });
    case BinaryOp::kGreater:
      return run([](I x, I y) { return I{x > y}; });
    case BinaryOp::kGreaterEqual:
      return run([](I x, I y) { return I{x >= y}; });
    case BinaryOp::kAnd:
      return run([](I x, I y) { return I{x != 0 && y != 0}; });
    case BinaryOp::kOr:
      return run([](I x, I y) { return I{x != 0 || y != 0}; });
    default:
      break;
  }
  CH_CHECK(false) << "binary kernel: not an op of integers";
}

template <typename C>
void BinaryAs(const BinaryArgs& args, KernelContext& context) {
  const auto loop = StridedLoop::Make(
      args.shape, {args.out.strides, args.a.strides, args.b.strides}, 0);
  const auto alpha = static_cast<C>(args.alpha);
  const bool slow =
      args.op >= BinaryOp::kPow && args.op <= BinaryOp::kSigmoidBackward;
  ForBlocks(context, loop, slow ? 24 : 4, [&]() HWY_ATTR {
    return [&args, &loop, alpha, a = StagedInput<C>(args.a, loop, 1),
            b = StagedInput<C>(args.b, loop, 2),
            out = StagedOutput<C>(args.out, args.mode, loop, 0)](
               const Blocking::Block& block) mutable HWY_ATTR {
      const C* x = a.Load(loop, block);
      const C* y = b.Load(loop, block);
      BinaryRun(args.op, alpha, out.Begin(loop, block),
                block.rows * block.count, x, y);
      out.End(loop, block);
    };
  });
}

CH_COMPUTE_KERNEL(Binary, args.a.dtype)

template <typename C>
void WhereAs(const WhereArgs& args, KernelContext& context) {
  const auto loop = StridedLoop::Make(args.shape,
                                      {args.out.strides, args.condition.strides,
                                       args.a.strides, args.b.strides},
                                      0);
  ForBlocks(context, loop, 4, [&]() HWY_ATTR {
    return [&loop, condition = StagedInput<C>(args.condition, loop, 1),
            a = StagedInput<C>(args.a, loop, 2),
            b = StagedInput<C>(args.b, loop, 3),
            out = StagedOutput<C>(args.out, args.mode, loop, 0)](
               const Blocking::Block& block) mutable HWY_ATTR {
      const C* c = condition.Load(loop, block);
      const C* x = a.Load(loop, block);
      const C* y = b.Load(loop, block);
      C* to = out.Begin(loop, block);
      const int64_t count = block.rows * block.count;
      for (int64_t i = 0; i < count; ++i) to[i] = c[i] != C(0) ? x[i] : y[i];
      out.End(loop, block);
    };
  });
}

CH_COMPUTE_KERNEL(Where, args.a.dtype)

template <typename T>
void SiluMulAs(const SiluMulArgs& args, KernelContext& context) {
  const auto loop = StridedLoop::Make(
      args.shape, {args.out.strides, args.gate.strides, args.up.strides}, 0);
  ForBlocks(context, loop, 16, [&]() HWY_ATTR {
    return [&loop, gate = StagedInput<T>(args.gate, loop, 1),
            up = StagedInput<T>(args.up, loop, 2),
            out = StagedOutput<T>(args.out, WriteMode::kOverwrite, loop, 0)](
               const Blocking::Block& block) mutable HWY_ATTR {
      const T* g = gate.Load(loop, block);
      const T* u = up.Load(loop, block);
      MapRun([](auto d, auto x, auto y)
                 HWY_ATTR { return hn::Mul(Silu(d, x), y); },
             out.Begin(loop, block), block.rows * block.count, g, u);
      out.End(loop, block);
    };
  });
}

CH_FLOAT_KERNEL(SiluMul, "silu_mul", args.gate.dtype)

template <typename T>
void SiluMulBackwardAs(const SiluMulBackwardArgs& args,
                       KernelContext& context) {
  if (!args.want_dgate && !args.want_dup) return;
  const KernelOutput& lead = args.want_dgate ? args.dgate : args.dup;
  const auto loop =
      StridedLoop::Make(args.shape,
                        {args.want_dgate ? args.dgate.strides : lead.strides,
                         args.want_dup ? args.dup.strides : lead.strides,
                         args.grad.strides, args.gate.strides, args.up.strides},
                        0);
  ForBlocks(context, loop, 24, [&]() HWY_ATTR {
    return [&args, &loop, grad = StagedInput<T>(args.grad, loop, 2),
            gate = StagedInput<T>(args.gate, loop, 3),
            up = StagedInput<T>(args.up, loop, 4),
            dgate = StagedOutput<T>(args.dgate, WriteMode::kOverwrite, loop, 0),
            dup = StagedOutput<T>(args.dup, WriteMode::kOverwrite, loop, 1)](
               const Blocking::Block& block) mutable HWY_ATTR {
      const int64_t count = block.rows * block.count;
      const T* dy = grad.Load(loop, block);
      const T* g = gate.Load(loop, block);
      if (args.want_dgate) {
        const T* u = up.Load(loop, block);
        MapRun(
            [](auto d, auto vdy, auto vg, auto vu) HWY_ATTR {
              return hn::Mul(hn::Mul(vdy, vu), SiluDerivative(d, vg));
            },
            dgate.Begin(loop, block), count, dy, g, u);
        dgate.End(loop, block);
      }
      if (args.want_dup) {
        MapRun([](auto d, auto vdy, auto vg)
                   HWY_ATTR { return hn::Mul(vdy, Silu(d, vg)); },
               dup.Begin(loop, block), count, dy, g);
        dup.End(loop, block);
      }
    };
  });
}

CH_FLOAT_KERNEL(SiluMulBackward, "silu_mul_backward", args.gate.dtype)

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace crosshatch
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace crosshatch {

CH_CPU_KERNEL(Unary)
CH_CPU_KERNEL(Binary)
CH_CPU_KERNEL(Where)
CH_CPU_KERNEL(SiluMul)
CH_CPU_KERNEL(SiluMulBackward)

}  // namespace crosshatch
#endif  // HWY_ONCE
