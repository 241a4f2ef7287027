// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/kernels/cpu/targets.h"
// Before the headers that are compiled once for each target.
#include <cmath>
#include <cstdint>

#include "crosshatch/tensor/kernels/philox.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/kernels/cpu/random_run.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "crosshatch/tensor/kernels/cpu/random_run-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace crosshatch {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

float One(const Generator& g, uint64_t element) {
  const auto words = internal::Philox(
      {static_cast<uint32_t>(element), static_cast<uint32_t>(element >> 32),
       static_cast<uint32_t>(g.stream), static_cast<uint32_t>(g.stream >> 32)},
      {static_cast<uint32_t>(g.key), static_cast<uint32_t>(g.key >> 32)});
  const float value = g.kind == RandomKind::kUniform
                          ? internal::UniformOf(words[0])
                          : internal::NormalOf(words[0], words[1]);
  return std::fma(g.factor, value, g.offset);
}

// Vector code needs a fused multiply-add and the product of even lanes.
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
#define CROSSHATCH_RANDOM_VECTORS 1
#else
#define CROSSHATCH_RANDOM_VECTORS 0
#endif

#if CROSSHATCH_RANDOM_VECTORS

/// Computes high and low halves of the products of all lanes with a constant.
template <class V>
HWY_INLINE void MultiplyHighLow(V x, V factor, V& high, V& low) {
  const hn::DFromV<V> d;
  const hn::RepartitionToWide<decltype(d)> wide;
  const auto even = hn::MulEven(x, factor);
  const auto odd = hn::MulEven(
      hn::BitCast(d, hn::ShiftRight<32>(hn::BitCast(wide, x))), factor);
  high = hn::OddEven(hn::BitCast(d, odd),
                     hn::BitCast(d, hn::ShiftRight<32>(even)));
  low =
      hn::OddEven(hn::BitCast(d, hn::ShiftLeft<32>(odd)), hn::BitCast(d, even));
}

/// Computes the first two words of the blocks of consecutive elements.
template <class DU, class V = hn::Vec<DU>>
HWY_INLINE void PhiloxVectors(DU du, const Generator& g, uint64_t element,
                              V& word0, V& word1) {
  const V low = hn::Set(du, static_cast<uint32_t>(element));
  V c0 = hn::Add(low, hn::Iota(du, 0));
  // Lanes whose low word wrapped around have the next high word.
  const V carry = hn::IfThenElseZero(hn::Lt(c0, low), hn::Set(du, 1u));
  V c1 = hn::Add(hn::Set(du, static_cast<uint32_t>(element >> 32)), carry);
  V c2 = hn::Set(du, static_cast<uint32_t>(g.stream));
  V c3 = hn::Set(du, static_cast<uint32_t>(g.stream >> 32));
  auto key0 = static_cast<uint32_t>(g.key);
  auto key1 = static_cast<uint32_t>(g.key >> 32);
  const V multiplier0 = hn::Set(du, internal::kPhiloxMultiplier0);
  const V multiplier1 = hn::Set(du, internal::kPhiloxMultiplier1);
  for (int round = 0; round < internal::kPhiloxRounds; ++round) {
    V high0, low0, high1, low1;
    MultiplyHighLow(c0, multiplier0, high0, low0);
    MultiplyHighLow(c2, multiplier1, high1, low1);
    c0 = hn::Xor(hn::Xor(high1, c1), hn::Set(du, key0));
    c1 = low1;
    c2 = hn::Xor(hn::Xor(high0, c3), hn::Set(du, key1));
    c3 = low0;
    key0 += internal::kPhiloxWeyl0;
    key1 += internal::kPhiloxWeyl1;
  }
  word0 = c0;
  word1 = c1;
}

/// Returns the top 24 bits plus `add`, exact in float, times a power of two.
template <class D, class VU>
HWY_INLINE hn::Vec<D> Top24(D d, VU words, int32_t add, float scale) {
  const hn::RebindToSigned<D> di;
  const auto integers =
      hn::Add(hn::BitCast(di, hn::ShiftRight<8>(words)), hn::Set(di, add));
  return hn::Mul(hn::ConvertTo(d, integers), hn::Set(d, scale));
}

/// Computes NormalOf, operation by operation.
template <class D, class VU>
HWY_INLINE hn::Vec<D> NormalVectors(D d, VU word0, VU word1) {
  const hn::RebindToSigned<D> di;
  const auto u = Top24(d, word0, 1, 0x1.0p-24f);
  const auto cut = hn::Set(di, internal::kSqrtHalfBits);
  const auto shifted = hn::Sub(hn::BitCast(di, u), cut);
  const auto exponent = hn::ConvertTo(d, hn::ShiftRight<23>(shifted));
  const auto f = hn::Sub(
      hn::BitCast(d, hn::Add(hn::And(shifted, hn::Set(di, 0x007FFFFF)), cut)),
      hn::Set(d, 1.0f));
  const auto f2 = hn::Mul(f, f);
  auto p = hn::Set(d, internal::LogCoefficient(0));
  for (int i = 1; i < 9; ++i) {
    p = hn::MulAdd(p, f, hn::Set(d, internal::LogCoefficient(i)));
  }
  auto log = hn::Mul(p, hn::Mul(f, f2));
  log = hn::MulAdd(exponent, hn::Set(d, internal::kLog2Low), log);
  log = hn::MulAdd(hn::Set(d, -0.5f), f2, log);
  log = hn::MulAdd(exponent, hn::Set(d, internal::kLog2High), hn::Add(f, log));
  const auto radius =
      hn::Sqrt(hn::Max(hn::Mul(hn::Set(d, -2.0f), log), hn::Zero(d)));

  const auto turns4 = Top24(d, word1, 0, 0x1.0p-22f);
  const auto quarter = hn::ConvertTo(di, hn::Add(turns4, hn::Set(d, 0.5f)));
  const auto g = hn::Sub(turns4, hn::ConvertTo(d, quarter));
  const auto g2 = hn::Mul(g, g);
  auto sine = hn::Set(d, internal::SinCoefficient(0));
  auto cosine = hn::Set(d, internal::CosCoefficient(0));
  for (int i = 1; i < 5; ++i) {
    sine = hn::MulAdd(sine, g2, hn::Set(d, internal::SinCoefficient(i)));
    cosine = hn::MulAdd(cosine, g2, hn::Set(d, internal::CosCoefficient(i)));
  }
  sine = hn::Mul(sine, g);
  const auto one = hn::Set(di, 1);
  const auto is_sine = hn::RebindMask(d, hn::Eq(hn::And(quarter, one), one));
  const auto sign =
      hn::ShiftLeft<30>(hn::And(hn::Add(quarter, one), hn::Set(di, 2)));
  const auto value =
      hn::Xor(hn::IfThenElse(is_sine, sine, cosine), hn::BitCast(d, sign));
  return hn::Mul(radius, value);
}

#endif  // CROSSHATCH_RANDOM_VECTORS

}  // namespace

void Generate(const Generator& g, uint64_t element, float* to, int64_t count) {
  int64_t i = 0;
#if CROSSHATCH_RANDOM_VECTORS
  const hn::ScalableTag<float> d;
  const hn::RebindToUnsigned<decltype(d)> du;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (; i + lanes <= count; i += lanes) {
    hn::Vec<decltype(du)> word0, word1;
    PhiloxVectors(du, g, element + static_cast<uint64_t>(i), word0, word1);
    const auto value = g.kind == RandomKind::kUniform
                           ? Top24(d, word0, 0, 0x1.0p-24f)
                           : NormalVectors(d, word0, word1);
    hn::StoreU(hn::MulAdd(hn::Set(d, g.factor), value, hn::Set(d, g.offset)), d,
               to + i);
  }
#endif
  for (; i < count; ++i) to[i] = One(g, element + static_cast<uint64_t>(i));
}

void GenerateRun(const Generator& g, uint64_t element, int64_t step, float* to,
                 int64_t count) {
  if (step == 1) {
    Generate(g, element, to, count);
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    to[i] = One(g, element + static_cast<uint64_t>(i * step));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace crosshatch
HWY_AFTER_NAMESPACE();

#undef CROSSHATCH_RANDOM_VECTORS
