// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_FLOAT8_BITS_H_
#define CROSSHATCH_TENSOR_FLOAT8_BITS_H_

/// \file
/// The bits of 8-bit floats, from float and back: what Float8E4M3 and
/// Float8E5M2 (dtype.h) do, where kernels of every device can call it. Without
/// branches, so that loops vectorize.

#include <bit>
#include <cstdint>

#include "crosshatch/tensor/device_function.h"
#include "crosshatch/tensor/half_bits.h"

namespace crosshatch::internal {

/// Converts to a format with kMantissa bits of mantissa and the exponent bias
/// kBias whose largest finite value is kMax.
template <int kMantissa, int kBias, uint32_t kMax>
CH_HOST_DEVICE constexpr uint8_t Float8Bits(float value) {
  constexpr int kDropped = 23 - kMantissa;
  constexpr uint32_t kRebias = (127u - kBias) << 23;
  constexpr uint32_t kSmallestNormal = (128u - kBias) << 23;
  // Its last bit is worth the smallest float8, so an addition rounds to a
  // multiple of that.
  constexpr uint32_t kMagic = (127u + 1 - kBias + kDropped) << 23;
  const auto x = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (x >> 24) & 0x80u;
  const uint32_t magnitude = x & 0x7FFFFFFFu;
  const uint32_t finite = magnitude < kMax ? magnitude : kMax;
  const uint32_t normal = (finite - kRebias + ((1u << (kDropped - 1)) - 1) +
                           ((finite >> kDropped) & 1u)) >>
                          kDropped;
  const uint32_t subnormal =
      std::bit_cast<uint32_t>(std::bit_cast<float>(finite) +
                              std::bit_cast<float>(kMagic)) -
      kMagic;
  const uint32_t rounded = finite < kSmallestNormal ? subnormal : normal;
  return static_cast<uint8_t>(sign |
                              (magnitude > kInfinity32 ? 0x7Fu : rounded));
}

CH_HOST_DEVICE constexpr uint8_t Float8E4M3Bits(float value) {
  return Float8Bits<3, 7, 0x43E00000u>(value);  // 448
}
CH_HOST_DEVICE constexpr uint8_t Float8E5M2Bits(float value) {
  return Float8Bits<2, 15, 0x47600000u>(value);  // 57344
}

CH_HOST_DEVICE constexpr float FromFloat8E4M3Bits(uint8_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x80u) << 24;
  const uint32_t rest = bits & 0x7Fu;
  // The multiplication corrects the exponent, of subnormal numbers too.
  const float value = std::bit_cast<float>(rest << 20) * 0x1p120f;
  return std::bit_cast<float>(
      sign | (rest == 0x7Fu ? 0x7FC00000u : std::bit_cast<uint32_t>(value)));
}
/// The upper byte of a float16.
CH_HOST_DEVICE constexpr float FromFloat8E5M2Bits(uint8_t bits) {
  return FromFloat16Bits(static_cast<uint16_t>(bits << 8));
}

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_TENSOR_FLOAT8_BITS_H_
