// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_PHILOX_H_
#define CROSSHATCH_TENSOR_KERNELS_PHILOX_H_

/// \file
/// Random values of single elements: the definition that vector code and other
/// devices reproduce bit for bit. Every floating point operation is an IEEE
/// operation (sum, product, fused multiply-add, square root); no libm.

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>

#include "crosshatch/tensor/device_function.h"

namespace crosshatch::internal {

inline constexpr int kPhiloxRounds = 10;
inline constexpr uint32_t kPhiloxMultiplier0 = 0xD2511F53u;
inline constexpr uint32_t kPhiloxMultiplier1 = 0xCD9E8D57u;
inline constexpr uint32_t kPhiloxWeyl0 = 0x9E3779B9u;
inline constexpr uint32_t kPhiloxWeyl1 = 0xBB67AE85u;

/// Philox4x32-10 (Salmon et al., 2011): a block of four words.
CH_HOST_DEVICE inline std::array<uint32_t, 4> Philox(
    std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const uint64_t product0 = uint64_t{kPhiloxMultiplier0} * counter[0];
    const uint64_t product1 = uint64_t{kPhiloxMultiplier1} * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0],
               static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1],
               static_cast<uint32_t>(product0)};
    key[0] += kPhiloxWeyl0;
    key[1] += kPhiloxWeyl1;
  }
  return counter;
}

/// Coefficients, highest power first. log(1 + f) = f - f^2 / 2 + f^3 P(f) for
/// 1 + f in [sqrt(1/2), sqrt(2)] (after Cephes); sine and cosine of a quarter
/// turn times f, |f| <= 1/2, as f S(f^2) and C(f^2) (Taylor).
CH_HOST_DEVICE constexpr float LogCoefficient(int i) {
  constexpr float kCoefficients[] = {
      7.0376836292e-2f,  -1.1514610310e-1f, 1.1676998740e-1f,
      -1.2420140846e-1f, 1.4249322787e-1f,  -1.6668057665e-1f,
      2.0000714765e-1f,  -2.4999993993e-1f, 3.3333331174e-1f};
  return kCoefficients[i];
}
inline constexpr float kLog2High = 0.693359375f;
inline constexpr float kLog2Low = -2.12194440e-4f;
CH_HOST_DEVICE constexpr float SinCoefficient(int i) {
  constexpr float kCoefficients[] = {
      1.6044118478735982e-4f, -4.6817541353186881e-3f, 7.9692626246167046e-2f,
      -6.4596409750624625e-1f, 1.5707963267948966f};
  return kCoefficients[i];
}
CH_HOST_DEVICE constexpr float CosCoefficient(int i) {
  constexpr float kCoefficients[] = {
      9.1926027483942658e-4f, -2.0863480763352961e-2f, 2.5366950790104802e-1f,
      -1.2337005501361698f, 1.0f};
  return kCoefficients[i];
}

/// Bits of sqrt(1/2): the boundary for the mantissa of a logarithm's argument.
inline constexpr int32_t kSqrtHalfBits = 0x3F3504F3;

/// u in [0, 1), a multiple of 2^-24.
CH_HOST_DEVICE inline float UniformOf(uint32_t word) {
  return static_cast<float>(word >> 8) * 0x1.0p-24f;
}

/// Box-Muller from two words: standard normal, at most 5.77.
CH_HOST_DEVICE inline float NormalOf(uint32_t word0, uint32_t word1) {
  // The radius, from a uniform in (0, 1].
  const float u = static_cast<float>((word0 >> 8) + 1) * 0x1.0p-24f;
  const int32_t shifted = std::bit_cast<int32_t>(u) - kSqrtHalfBits;
  const auto exponent = static_cast<float>(shifted >> 23);
  const float f =
      std::bit_cast<float>((shifted & 0x007FFFFF) + kSqrtHalfBits) - 1.0f;
  const float f2 = f * f;
  float p = LogCoefficient(0);
  for (int i = 1; i < 9; ++i) p = std::fma(p, f, LogCoefficient(i));
  float log = p * (f * f2);
  log = std::fma(exponent, kLog2Low, log);
  log = std::fma(-0.5f, f2, log);
  log = std::fma(exponent, kLog2High, f + log);
  const float radius = std::sqrt(std::max(-2.0f * log, 0.0f));

  // The cosine of a uniform angle, by quarters of a turn.
  const float turns4 = static_cast<float>(word1 >> 8) * 0x1.0p-22f;
  const auto quarter = static_cast<int32_t>(turns4 + 0.5f);
  const float g = turns4 - static_cast<float>(quarter);
  const float g2 = g * g;
  float sine = SinCoefficient(0);
  float cosine = CosCoefficient(0);
  for (int i = 1; i < 5; ++i) {
    sine = std::fma(sine, g2, SinCoefficient(i));
    cosine = std::fma(cosine, g2, CosCoefficient(i));
  }
  sine = sine * g;
  // Quarters 0 to 3 (4 is 0): cos, -sin, -cos, sin.
  float value = (quarter & 1) != 0 ? sine : cosine;
  if (((quarter + 1) & 2) != 0) value = -value;
  return radius * value;
}

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_TENSOR_KERNELS_PHILOX_H_
