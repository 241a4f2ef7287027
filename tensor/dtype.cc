// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/dtype.h"

#include <bit>

namespace crosshatch {

const char* Name(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return "f32";
    case DType::kFloat64:
      return "f64";
    case DType::kBFloat16:
      return "bf16";
    case DType::kFloat16:
      return "f16";
    case DType::kInt32:
      return "i32";
    case DType::kInt64:
      return "i64";
    case DType::kUInt16:
      return "u16";
    case DType::kBool:
      return "bool";
  }
  return "unknown";
}

std::ostream& operator<<(std::ostream& out, DType dtype) {
  return out << Name(dtype);
}

BFloat16::BFloat16(float value) {
  const auto x = std::bit_cast<uint32_t>(value);
  if (value != value) {
    // Truncation could clear all of the mantissa: set its quiet bit.
    bits = static_cast<uint16_t>((x >> 16) | 0x0040);
  } else {
    const uint32_t last_kept = (x >> 16) & 1;
    bits = static_cast<uint16_t>((x + 0x7FFF + last_kept) >> 16);
  }
}

BFloat16::operator float() const {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

namespace {

// Exponents in place: float32 has bias 127 and 23 bits of mantissa, float16 has
// bias 15 and 10 bits.
constexpr uint32_t kRebias = (127 - 15) << 23;
constexpr uint32_t kInfinity32 = 0x7F800000;
constexpr uint32_t kHalfOverflow = (15 + 1 + 127) << 23;        // 2^16
constexpr uint32_t kHalfSmallestNormal = (1 - 15 + 127) << 23;  // 2^-14

}  // namespace

Float16::Float16(float value) {
  auto x = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (x >> 16) & 0x8000;
  x &= 0x7FFFFFFF;
  uint32_t magnitude;
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
    magnitude = (x - kRebias + 0xFFF + last_kept) >> 13;
  }
  bits = static_cast<uint16_t>(sign | magnitude);
}

Float16::operator float() const {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t exponent = bits & 0x7C00;
  uint32_t magnitude = static_cast<uint32_t>(bits & 0x7FFF) << 13;
  if (exponent == 0x7C00) {
    magnitude |= kInfinity32;
  } else if (exponent != 0) {
    magnitude += kRebias;
  } else {
    // Subnormal: an implicit leading one is added and subtracted again.
    const float one = std::bit_cast<float>(kHalfSmallestNormal);
    magnitude = std::bit_cast<uint32_t>(
        std::bit_cast<float>(magnitude + kHalfSmallestNormal) - one);
  }
  return std::bit_cast<float>(sign | magnitude);
}

}  // namespace crosshatch
