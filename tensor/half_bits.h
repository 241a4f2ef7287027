// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_HALF_BITS_H_
#define CROSSHATCH_TENSOR_HALF_BITS_H_

/// \file
/// The bits of 16-bit floats, from float and back: what BFloat16 and Float16
/// (dtype.h) do, where kernels of every device can call it. Conversions round
/// to nearest even and keep NaN.

#include <bit>
#include <cstdint>

#include "crosshatch/tensor/device_function.h"

namespace crosshatch::internal {

CH_HOST_DEVICE constexpr uint16_t BFloat16Bits(float value) {
  const auto x = std::bit_cast<uint32_t>(value);
  if (value != value) {
    // Truncation could clear all of the mantissa: set its quiet bit.
    return static_cast<uint16_t>((x >> 16) | 0x0040);
  }
  const uint32_t last_kept = (x >> 16) & 1;
  return static_cast<uint16_t>((x + 0x7FFF + last_kept) >> 16);
}

CH_HOST_DEVICE constexpr float FromBFloat16Bits(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// Exponents in place: float32 has bias 127 and 23 bits of mantissa, float16 has
// bias 15 and 10 bits.
inline constexpr uint32_t kHalfRebias = (127 - 15) << 23;
inline constexpr uint32_t kInfinity32 = 0x7F800000;
inline constexpr uint32_t kHalfOverflow = (15 + 1 + 127) << 23;        // 2^16
inline constexpr uint32_t kHalfSmallestNormal = (1 - 15 + 127) << 23;  // 2^-14

CH_HOST_DEVICE constexpr uint16_t Float16Bits(float value) {
  auto x = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (x >> 16) & 0x8000;
  x &= 0x7FFFFFFF;
  uint32_t magnitude = 0;
  if (x > kInfinity32) {
    magnitude = 0x7E00 | ((x >> 13) & 0x3FF);
  } else if (x >= kHalfOverflow) {
    magnitude = 0x7C00;
  } else if (x < kHalfSmallestNormal) {
    // The last bit of 0.5f is worth the smallest float16, so the addition
    // rounds to a multiple of it.
    const float rounded = std::bit_cast<float>(x) + 0.5f;
    magnitude =
        std::bit_cast<uint32_t>(rounded) - std::bit_cast<uint32_t>(0.5f);
  } else {
    const uint32_t last_kept = (x >> 13) & 1;
    magnitude = (x - kHalfRebias + 0xFFF + last_kept) >> 13;
  }
  return static_cast<uint16_t>(sign | magnitude);
}

CH_HOST_DEVICE constexpr float FromFloat16Bits(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t exponent = bits & 0x7C00;
  uint32_t magnitude = static_cast<uint32_t>(bits & 0x7FFF) << 13;
  if (exponent == 0x7C00) {
    magnitude |= kInfinity32;
  } else if (exponent != 0) {
    magnitude += kHalfRebias;
  } else {
    // Subnormal: an implicit leading one is added and subtracted again.
    const float one = std::bit_cast<float>(kHalfSmallestNormal);
    magnitude = std::bit_cast<uint32_t>(
        std::bit_cast<float>(magnitude + kHalfSmallestNormal) - one);
  }
  return std::bit_cast<float>(sign | magnitude);
}

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_TENSOR_HALF_BITS_H_
