// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/kernels/cuda/elementwise.cuh"
#include "crosshatch/tensor/kernels/cuda/entry_points.h"

namespace crosshatch::internal {
namespace {

template <int N, typename C, typename F>
__device__ __forceinline__ void ForEach(C (&out)[N], F f) {
#pragma unroll
  for (int i = 0; i < N; ++i) out[i] = f(i);
}

template <typename C>
__device__ __forceinline__ C Sigmoid(C x) {
  return C(1) / (C(1) + std::exp(-x));
}
template <typename C>
__device__ __forceinline__ C Silu(C x) {
  return x / (C(1) + std::exp(-x));
}
template <typename C>
__device__ __forceinline__ C SiluSlope(C x) {
  const C s = Sigmoid(x);
  return s + x * s * (C(1) - s);
}
/// The sigmoid in gelu has the argument kGeluSlope x (1 + kGeluCube x^2).
template <typename C>
inline constexpr C kGeluSlope = C(1.5957691216057307);  // 2 sqrt(2 / pi)
template <typename C>
inline constexpr C kGeluCube = C(0.044715);
template <typename C>
__device__ __forceinline__ C Gelu(C x) {
  const C argument = kGeluSlope<C> * (x + kGeluCube<C> * x * x * x);
  return x * Sigmoid(argument);
}
template <typename C>
__device__ __forceinline__ C GeluSlope(C x) {
  const C s = Sigmoid(kGeluSlope<C> * (x + kGeluCube<C> * x * x * x));
  const C slope = kGeluSlope<C> * (C(1) + C(3) * kGeluCube<C> * x * x);
  return s + x * s * (C(1) - s) * slope;
}

template <typename C>
__device__ __forceinline__ C NormalBelow(C x) {
  return C(0.5) + C(0.5) * std::erf(x * C(0.70710678118654752));
}
template <typename C>
__device__ __forceinline__ C GeluExactSlope(C x) {
  const C density = C(0.39894228040143268) * std::exp(C(-0.5) * x * x);
  return NormalBelow(x) + x * density;
}

template <typename C>
struct Unary {
  using Typed = void;
  UnaryOp op;
  C scalar;

  template <int N>
  __device__ void operator()(const C (&in)[1][N], C (&out)[1][N]) const {
    const auto of = [&](auto f) {
      ForEach(out[0], [&](int i) { return f(in[0][i]); });
    };
    switch (op) {
      case UnaryOp::kNeg:
        return of([](C x) { return Negative(x); });
      case UnaryOp::kAbs:
        if constexpr (std::is_integral_v<C>) {
          return of([](C x) { return x < 0 ? Negative(x) : x; });
        } else {
          return of([](C x) { return std::abs(x); });
        }
      case UnaryOp::kSign:
        return of([](C x) { return x > 0 ? C(1) : x < 0 ? C(-1) : x; });
      case UnaryOp::kSquare:
        return of([](C x) { return Times(x, x); });
      case UnaryOp::kRelu:
        return of([](C x) { return x < 0 ? C(0) : x; });
      case UnaryOp::kAddScalar:
        return of([this](C x) { return Plus(x, scalar); });
      case UnaryOp::kMulScalar:
        return of([this](C x) { return Times(x, scalar); });
      case UnaryOp::kScalarMinus:
        return of([this](C x) { return Plus(scalar, Negative(x)); });
      case UnaryOp::kMaxScalar:
        return of([this](C x) { return LargerOf(x, scalar); });
      case UnaryOp::kMinScalar:
        return of([this](C x) { return SmallerOf(x, scalar); });
      case UnaryOp::kNot:
        return of([](C x) { return x == 0 ? C(1) : C(0); });
      default:
        if constexpr (!std::is_integral_v<C>) return Float(of);
    }
  }

 private:
  template <typename Of>
  __device__ void Float(Of of) const {
    switch (op) {
      case UnaryOp::kExp:
        return of([](C x) { return std::exp(x); });
      case UnaryOp::kLog:
        return of([](C x) { return std::log(x); });
      case UnaryOp::kSqrt:
        return of([](C x) { return std::sqrt(x); });
      case UnaryOp::kRsqrt:
        return of([](C x) { return C(1) / std::sqrt(x); });
      case UnaryOp::kReciprocal:
        return of([](C x) { return C(1) / x; });
      case UnaryOp::kTanh:
        return of([](C x) { return std::tanh(x); });
      case UnaryOp::kSigmoid:
        return of([](C x) { return Sigmoid(x); });
      case UnaryOp::kSilu:
        return of([](C x) { return Silu(x); });
      case UnaryOp::kGelu:
        return of([](C x) { return Gelu(x); });
      case UnaryOp::kErf:
        return of([](C x) { return std::erf(x); });
      case UnaryOp::kGeluExact:
        return of([](C x) { return x * NormalBelow(x); });
      case UnaryOp::kPowScalar:
        return of([this](C x) { return std::pow(x, scalar); });
      default:
        return;
    }
  }
};

template <typename C>
__device__ __forceinline__ C Quotient(C a, C b) {
  if constexpr (std::is_integral_v<C>) {
    // The lowest number divided by -1 wraps.
    return b == 0 ? 0 : b == -1 ? Negative(a) : a / b;
  } else {
    return a / b;
  }
}

template <typename C>
struct Binary {
  using Typed = void;
  BinaryOp op;
  C alpha;

  template <int N>
  __device__ void operator()(const C (&in)[2][N], C (&out)[1][N]) const {
    const auto of = [&](auto f) {
      ForEach(out[0], [&](int i) { return f(in[0][i], in[1][i]); });
    };
    const auto holds = [&](auto f) {
      ForEach(out[0], [&](int i) { return C(f(in[0][i], in[1][i]) ? 1 : 0); });
    };
    switch (op) {
      case BinaryOp::kAdd:
        return of([this](C a, C b) { return Plus(a, Times(alpha, b)); });
      case BinaryOp::kSub:
        return of(
            [this](C a, C b) { return Plus(a, Negative(Times(alpha, b))); });
      case BinaryOp::kMul:
        return of([](C a, C b) { return Times(a, b); });
      case BinaryOp::kDiv:
        return of([](C a, C b) { return Quotient(a, b); });
      case BinaryOp::kMax:
        return of([](C a, C b) { return LargerOf(a, b); });
      case BinaryOp::kMin:
        return of([](C a, C b) { return SmallerOf(a, b); });
      case BinaryOp::kEqual:
        return holds([](C a, C b) { return a == b; });
      case BinaryOp::kNotEqual:
        return holds([](C a, C b) { return a != b; });
      case BinaryOp::kLess:
        return holds([](C a, C b) { return a < b; });
      case BinaryOp::kLessEqual:
        return holds([](C a, C b) { return a <= b; });
      case BinaryOp::kGreater:
        return holds([](C a, C b) { return a > b; });
      case BinaryOp::kGreaterEqual:
        return holds([](C a, C b) { return a >= b; });
      case BinaryOp::kAnd:
        return holds([](C a, C b) { return a != 0 && b != 0; });
      case BinaryOp::kOr:
        return holds([](C a, C b) { return a != 0 || b != 0; });
      default:
        if constexpr (!std::is_integral_v<C>) return Float(of);
    }
  }

 private:
  template <typename Of>
  __device__ void Float(Of of) const {
    switch (op) {
      case BinaryOp::kPow:
        return of([](C a, C b) { return std::pow(a, b); });
      case BinaryOp::kReluBackward:
        return of([](C a, C b) { return b <= 0 ? C(0) : a; });
      case BinaryOp::kSiluBackward:
        return of([](C a, C b) { return a * SiluSlope(b); });
      case BinaryOp::kGeluBackward:
        return of([](C a, C b) { return a * GeluSlope(b); });
      case BinaryOp::kGeluExactBackward:
        return of([](C a, C b) { return a * GeluExactSlope(b); });
      case BinaryOp::kTanhBackward:
        return of([](C a, C b) { return a * (C(1) - b * b); });
      case BinaryOp::kSigmoidBackward:
        return of([](C a, C b) { return a * b * (C(1) - b); });
      default:
        return;
    }
  }
};

template <typename C>
struct Where {
  template <int N>
  __device__ void operator()(const C (&in)[3][N], C (&out)[1][N]) const {
    ForEach(out[0], [&](int i) { return in[0][i] != 0 ? in[1][i] : in[2][i]; });
  }
};

template <typename C>
struct SiluMul {
  using Typed = void;
  template <int N>
  __device__ void operator()(const C (&in)[2][N], C (&out)[1][N]) const {
    ForEach(out[0], [&](int i) { return Silu(in[0][i]) * in[1][i]; });
  }
};

/// Inputs: the gradient, gate and up.
template <typename C>
struct SiluMulBackward {
  using Typed = void;
  template <int N>
  __device__ void operator()(const C (&in)[3][N], C (&out)[2][N]) const {
    ForEach(out[0],
            [&](int i) { return in[0][i] * in[2][i] * SiluSlope(in[1][i]); });
    ForEach(out[1], [&](int i) { return in[0][i] * Silu(in[1][i]); });
  }
};

/// Calls f(C()) with the compute type of operands of `dtype`.
template <typename F>
void DispatchCompute(DType dtype, F&& f) {
  CH_CHECK(!IsStorageOnly(dtype)) << "arithmetic on " << Name(dtype);
  if (!IsFloatingPoint(dtype)) return f(int64_t{});
  if (dtype == DType::kFloat64) return f(double{});
  return f(float{});
}

}  // namespace

void CudaUnary(const UnaryArgs& args, KernelContext& context) {
  CH_CHECK(IsFloatingPoint(args.a.dtype) || args.op < UnaryOp::kExp ||
           args.op == UnaryOp::kNot)
      << "unary kernel " << static_cast<int>(args.op) << " of "
      << Name(args.a.dtype);
  DispatchCompute(args.a.dtype, [&](auto zero) {
    using C = decltype(zero);
    Elementwise<C, 1, 1>(
        "unary", Unary<C>{args.op, static_cast<C>(args.scalar)}, args.shape,
        {AsOperand(args.a), AsOperand(args.out)}, context, {args.mode});
  });
}

void CudaBinary(const BinaryArgs& args, KernelContext& context) {
  CH_CHECK(IsFloatingPoint(args.a.dtype) || args.op < BinaryOp::kPow ||
           args.op >= BinaryOp::kEqual)
      << "binary kernel " << static_cast<int>(args.op) << " of "
      << Name(args.a.dtype);
  DispatchCompute(args.a.dtype, [&](auto zero) {
    using C = decltype(zero);
    Elementwise<C, 2, 1>(
        "binary", Binary<C>{args.op, static_cast<C>(args.alpha)}, args.shape,
        {AsOperand(args.a), AsOperand(args.b), AsOperand(args.out)}, context,
        {args.mode});
  });
}

void CudaWhere(const WhereArgs& args, KernelContext& context) {
  DispatchCompute(args.out.dtype, [&](auto zero) {
    using C = decltype(zero);
    Elementwise<C, 3, 1>("where", Where<C>{}, args.shape,
                         {AsOperand(args.condition), AsOperand(args.a),
                          AsOperand(args.b), AsOperand(args.out)},
                         context, {args.mode});
  });
}

void CudaSiluMul(const SiluMulArgs& args, KernelContext& context) {
  CH_CHECK(IsFloatingPoint(args.out.dtype)) << "silu_mul kernel";
  DispatchCompute(args.out.dtype, [&](auto zero) {
    using C = decltype(zero);
    if constexpr (!std::is_integral_v<C>) {
      Elementwise<C, 2, 1>(
          "silu_mul", SiluMul<C>{}, args.shape,
          {AsOperand(args.gate), AsOperand(args.up), AsOperand(args.out)},
          context);
    }
  });
}

void CudaSiluMulBackward(const SiluMulBackwardArgs& args,
                         KernelContext& context) {
  CH_CHECK(IsFloatingPoint(args.grad.dtype)) << "silu_mul_backward kernel";
  if (!args.want_dgate && !args.want_dup) return;
  ElementwiseOptions options;
  options.unwanted = (args.want_dgate ? 0u : 1u) | (args.want_dup ? 0u : 2u);
  // Outputs that are not needed may have neither memory nor strides.
  const KernelOutput& dgate = args.want_dgate ? args.dgate : args.dup;
  const KernelOutput& dup = args.want_dup ? args.dup : args.dgate;
  DispatchCompute(args.grad.dtype, [&](auto zero) {
    using C = decltype(zero);
    if constexpr (!std::is_integral_v<C>) {
      Elementwise<C, 3, 2>(
          "silu_mul_backward", SiluMulBackward<C>{}, args.shape,
          {AsOperand(args.grad), AsOperand(args.gate), AsOperand(args.up),
           AsOperand(dgate), AsOperand(dup)},
          context, options);
    }
  });
}

}  // namespace crosshatch::internal
