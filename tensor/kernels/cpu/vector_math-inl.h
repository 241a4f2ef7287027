// SPDX-License-Identifier: Apache-2.0

/// \file
/// Functions of vectors of float or double, defined over the full range: NaN
/// gives NaN, overflow infinity. Relative errors of exp, log, tanh, sigmoid and
/// silu are below 8 eps of the type; those of the others are stated with them.

#if defined(CROSSHATCH_TENSOR_KERNELS_CPU_VECTOR_MATH_INL_H_) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef CROSSHATCH_TENSOR_KERNELS_CPU_VECTOR_MATH_INL_H_
#undef CROSSHATCH_TENSOR_KERNELS_CPU_VECTOR_MATH_INL_H_
#else
#define CROSSHATCH_TENSOR_KERNELS_CPU_VECTOR_MATH_INL_H_
#endif

#include <cmath>
#include <limits>

#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace crosshatch {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// e^r for |r| <= ln(2) / 2: minimax in float (after Cephes), Taylor in double.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V ExpPolynomial(D d, V r) {
  using T = hn::TFromD<D>;
  constexpr T kFloat[] = {T(1.9875691500e-4), T(1.3981999507e-3),
                          T(8.3334519073e-3), T(4.1665795894e-2),
                          T(1.6666665459e-1), T(5.0000001201e-1)};
  constexpr T kDouble[] = {
      T(1.0 / 6227020800), T(1.0 / 479001600), T(1.0 / 39916800),
      T(1.0 / 3628800),    T(1.0 / 362880),    T(1.0 / 40320),
      T(1.0 / 5040),       T(1.0 / 720),       T(1.0 / 120),
      T(1.0 / 24),         T(1.0 / 6),         T(0.5)};
  V p;
  if constexpr (sizeof(T) == 4) {
    p = hn::Set(d, kFloat[0]);
    for (int i = 1; i < 6; ++i) p = hn::MulAdd(p, r, hn::Set(d, kFloat[i]));
  } else {
    p = hn::Set(d, kDouble[0]);
    for (int i = 1; i < 12; ++i) p = hn::MulAdd(p, r, hn::Set(d, kDouble[i]));
  }
  return hn::Add(hn::MulAdd(hn::Mul(r, r), p, r), hn::Set(d, T(1)));
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V FullExp(D d, V x) {
  using T = hn::TFromD<D>;
  constexpr bool kFloat = sizeof(T) == 4;
  constexpr int kMantissa = kFloat ? 23 : 52;
  // Below the first the result is 0 (denormal results are exact to half their
  // spacing), above the second infinity.
  const V clamped = hn::Min(hn::Max(x, hn::Set(d, T(kFloat ? -104.0 : -746.0))),
                            hn::Set(d, T(kFloat ? 89.0 : 710.0)));
  // Adding 1.5 * 2^mantissa leaves round(y) in the low bits.
  const V magic = hn::Set(d, T(kFloat ? 12582912.0 : 6755399441055744.0));
  const V shifted =
      hn::Add(hn::Mul(clamped, hn::Set(d, T(1.4426950408889634))), magic);
  const V n = hn::Sub(shifted, magic);
  V r = hn::NegMulAdd(
      n, hn::Set(d, T(kFloat ? 0.693359375 : 6.93145751953125e-1)), clamped);
  r = hn::NegMulAdd(
      n, hn::Set(d, T(kFloat ? -2.12194440e-4 : 1.42860682030941723212e-6)), r);
  const V y = ExpPolynomial(d, r);

  // 2^n in two factors, since n may be beyond the exponents of normal numbers.
  const hn::RebindToSigned<D> di;
  using TI = hn::TFromD<decltype(di)>;
  const auto k = hn::Sub(hn::BitCast(di, shifted), hn::BitCast(di, magic));
  const auto k1 = hn::ShiftRight<1>(k);
  const auto k2 = hn::Sub(k, k1);
  const auto bias = hn::Set(di, TI(kFloat ? 127 : 1023));
  const V s1 = hn::BitCast(d, hn::ShiftLeft<kMantissa>(hn::Add(k1, bias)));
  const V s2 = hn::BitCast(d, hn::ShiftLeft<kMantissa>(hn::Add(k2, bias)));
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Mul(hn::Mul(y, s1), s2));
}

/// e^x for x up to about 0, as for probabilities: subnormal results become 0.
/// NaN gives NaN.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V ExpOfNonPositive(D d, V x) {
  using T = hn::TFromD<D>;
  constexpr bool kFloat = sizeof(T) == 4;
  const V lowest = hn::Set(d, T(kFloat ? -87.3 : -708.3));
  const V magic = hn::Set(d, T(kFloat ? 12582912.0 : 6755399441055744.0));
  const V shifted = hn::Add(
      hn::Mul(hn::Max(x, lowest), hn::Set(d, T(1.4426950408889634))), magic);
  const V n = hn::Sub(shifted, magic);
  // Computed from x itself, so that NaN propagates.
  V r = hn::NegMulAdd(
      n, hn::Set(d, T(kFloat ? 0.693359375 : 6.93145751953125e-1)), x);
  r = hn::NegMulAdd(
      n, hn::Set(d, T(kFloat ? -2.12194440e-4 : 1.42860682030941723212e-6)), r);
  const V y = ExpPolynomial(d, r);
  const hn::RebindToSigned<D> di;
  using TI = hn::TFromD<decltype(di)>;
  // The magic number's own low bits are zero: only n's are shifted up.
  const auto bits =
      hn::Add(hn::BitCast(di, shifted), hn::Set(di, TI(kFloat ? 127 : 1023)));
  const V scale = hn::BitCast(d, hn::ShiftLeft<(kFloat ? 23 : 52)>(bits));
  return hn::IfThenZeroElse(hn::Lt(x, lowest), hn::Mul(y, scale));
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V FullLog(D d, V x) {
  using T = hn::TFromD<D>;
  const V inf = hn::Set(d, std::numeric_limits<T>::infinity());
  V y = hn::Log(d, x);
  y = hn::IfThenElse(hn::Eq(x, hn::Zero(d)), hn::Neg(inf), y);
  y = hn::IfThenElse(hn::Eq(x, inf), inf, y);
  y = hn::IfThenElse(hn::Lt(x, hn::Zero(d)),
                     hn::Set(d, std::numeric_limits<T>::quiet_NaN()), y);
  return hn::IfThenElse(hn::IsNaN(x), x, y);
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V FullTanh(D d, V x) {
  using T = hn::TFromD<D>;
  // Beyond 22 it is 1 in either type.
  const V limit = hn::Set(d, T(22));
  const V clamped = hn::Min(hn::Max(x, hn::Neg(limit)), limit);
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Tanh(d, clamped));
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V Sigmoid(D d, V x) {
  using T = hn::TFromD<D>;
  const V one = hn::Set(d, T(1));
  return hn::Div(one, hn::Add(one, FullExp(d, hn::Neg(x))));
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V Silu(D d, V x) {
  using T = hn::TFromD<D>;
  return hn::Div(x, hn::Add(hn::Set(d, T(1)), FullExp(d, hn::Neg(x))));
}

/// d silu / dx = s + x s (1 - s) with s = sigmoid(x).
template <class D, class V = hn::Vec<D>>
HWY_INLINE V SiluDerivative(D d, V x) {
  using T = hn::TFromD<D>;
  const V s = Sigmoid(d, x);
  return hn::MulAdd(hn::Mul(x, s), hn::Sub(hn::Set(d, T(1)), s), s);
}

/// 2 sqrt(2 / pi) (x + 0.044715 x^3): 0.5 (1 + tanh(u)) is sigmoid(2 u).
template <class D, class V = hn::Vec<D>>
HWY_INLINE V GeluArgument(D d, V x) {
  using T = hn::TFromD<D>;
  const V x2 = hn::Mul(x, x);
  const V factor = hn::MulAdd(x2, hn::Set(d, T(0.044715 * 1.5957691216057308)),
                              hn::Set(d, T(1.5957691216057308)));
  return hn::Mul(x, factor);
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V Gelu(D d, V x) {
  return hn::Mul(x, Sigmoid(d, GeluArgument(d, x)));
}

/// s + x s (1 - s) u' with s = sigmoid(u), u the argument above.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V GeluDerivative(D d, V x) {
  using T = hn::TFromD<D>;
  const V s = Sigmoid(d, GeluArgument(d, x));
  const V slope = hn::MulAdd(hn::Mul(x, x),
                             hn::Set(d, T(3 * 0.044715 * 1.5957691216057308)),
                             hn::Set(d, T(1.5957691216057308)));
  const V change = hn::Mul(hn::Mul(s, hn::Sub(hn::Set(d, T(1)), s)), slope);
  return hn::MulAdd(x, change, s);
}

/// In float within 2 eps: below 1 by x P(x^2), above as 1 - exp(Q(x)), P and Q
/// fitted to erf(x) / x and log(erfc(x)) at Chebyshev nodes. In double libm's.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Erf(D d, V x) {
  using T = hn::TFromD<D>;
  if constexpr (sizeof(T) == 8) {
    HWY_ALIGN T lanes[HWY_MAX_BYTES / sizeof(T)];
    hn::Store(x, d, lanes);
    for (size_t i = 0; i < hn::Lanes(d); ++i) lanes[i] = std::erf(lanes[i]);
    return hn::Load(d, lanes);
  } else {
    constexpr T kNear[] = {T(7.882497448e-5), T(-8.018855006e-4),
                           T(5.189312156e-3), T(-2.685432881e-2),
                           T(1.128359735e-1), T(-3.761262596e-1),
                           T(1.2837916613e-1)};
    constexpr T kFar[] = {
        T(1.614061603e-6),   T(-4.559062290e-5), T(5.927695310e-4),
        T(-4.740222357e-3),  T(2.636471763e-2),  T(-1.0997824371e-1),
        T(-6.3193708658e-1), T(-1.13016664982),  T(3.032129610e-4)};
    const V t = hn::Abs(x);
    const V square = hn::Mul(t, t);
    V near = hn::Set(d, kNear[0]);
    for (int i = 1; i < 7; ++i) {
      near = hn::MulAdd(near, square, hn::Set(d, kNear[i]));
    }
    near = hn::MulAdd(near, t, t);
    // Beyond 4 it is 1.
    const V bounded = hn::Min(t, hn::Set(d, T(4)));
    V far = hn::Set(d, kFar[0]);
    for (int i = 1; i < 9; ++i) {
      far = hn::MulAdd(far, bounded, hn::Set(d, kFar[i]));
    }
    const V one = hn::Set(d, T(1));
    far = hn::Sub(one, ExpOfNonPositive(d, far));
    const V y = hn::CopySign(hn::IfThenElse(hn::Lt(t, one), near, far), x);
    return hn::IfThenElse(hn::IsNaN(x), x, y);
  }
}

/// The normal distribution function at x. Its error is absolute.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V NormalBelow(D d, V x) {
  using T = hn::TFromD<D>;
  const V half = hn::Set(d, T(0.5));
  const V scaled = hn::Mul(x, hn::Set(d, T(0.70710678118654752)));
  return hn::MulAdd(half, Erf(d, scaled), half);
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V GeluExact(D d, V x) {
  return hn::Mul(x, NormalBelow(d, x));
}

/// The normal distribution function at x, plus x times the density.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V GeluExactDerivative(D d, V x) {
  using T = hn::TFromD<D>;
  const V density =
      hn::Mul(hn::Set(d, T(0.39894228040143268)),
              ExpOfNonPositive(d, hn::Mul(hn::Mul(x, x), hn::Set(d, T(-0.5)))));
  return hn::MulAdd(x, density, NormalBelow(d, x));
}

}  // namespace HWY_NAMESPACE
}  // namespace crosshatch
HWY_AFTER_NAMESPACE();

#endif  // CROSSHATCH_TENSOR_KERNELS_CPU_VECTOR_MATH_INL_H_
