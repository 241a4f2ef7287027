// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/float8_bits.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "crosshatch/tensor/dtype.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

/// A format, as the specification of the Open Compute Project defines it.
struct E4M3 {
  using Type = Float8E4M3;
  static constexpr int kMantissa = 3;
  static constexpr int kBias = 7;
  static constexpr uint8_t kLargest = 0x7E;
};
struct E5M2 {
  using Type = Float8E5M2;
  static constexpr int kMantissa = 2;
  static constexpr int kBias = 15;
  static constexpr uint8_t kLargest = 0x7B;
};

template <typename Format>
double ValueOf(uint8_t bits) {
  const int mantissa = bits & ((1 << Format::kMantissa) - 1);
  const int exponent = (bits & 0x7F) >> Format::kMantissa;
  const double value =
      exponent == 0
          ? std::ldexp(mantissa, 1 - Format::kBias - Format::kMantissa)
          : std::ldexp((1 << Format::kMantissa) + mantissa,
                       exponent - Format::kBias - Format::kMantissa);
  return (bits & 0x80) != 0 ? -value : value;
}

/// Tries every value: the nearest, of two the one with an even last bit, and
/// the largest for what exceeds it.
template <typename Format>
uint8_t Nearest(float x) {
  const uint8_t sign = std::signbit(x) ? 0x80 : 0;
  if (std::isnan(x)) return sign | 0x7F;
  const double magnitude = std::min(std::abs(static_cast<double>(x)),
                                    ValueOf<Format>(Format::kLargest));
  uint8_t best = 0;
  double distance = std::numeric_limits<double>::infinity();
  for (uint8_t bits = 0; bits <= Format::kLargest; ++bits) {
    const double next = std::abs(ValueOf<Format>(bits) - magnitude);
    if (next < distance || (next == distance && bits % 2 == 0)) {
      best = bits;
      distance = next;
    }
  }
  return sign | best;
}

/// CRC-32, as zlib's.
class Checksum {
 public:
  void Add(uint8_t byte) {
    value_ ^= byte;
    for (int bit = 0; bit < 8; ++bit) {
      value_ = (value_ >> 1) ^ (value_ % 2 == 1 ? 0xEDB88320u : 0);
    }
  }
  uint32_t value() const { return ~value_; }

 private:
  uint32_t value_ = ~uint32_t{0};
};

float SampleOf(uint32_t i) { return std::bit_cast<float>(i * 2654435761u); }

template <typename T>
class Float8BitsTest : public ::testing::Test {};
using Formats = ::testing::Types<E4M3, E5M2>;
TYPED_TEST_SUITE(Float8BitsTest, Formats);

TYPED_TEST(Float8BitsTest, WidensAllPatternsAndBack) {
  for (int pattern = 0; pattern < 256; ++pattern) {
    typename TypeParam::Type value;
    value.bits = static_cast<uint8_t>(pattern);
    const auto wide = static_cast<float>(value);
    const int magnitude = pattern & 0x7F;
    if (magnitude <= TypeParam::kLargest) {
      ASSERT_EQ(wide, ValueOf<TypeParam>(value.bits)) << pattern;
      ASSERT_EQ(std::signbit(wide), pattern > 0x7F) << pattern;
      ASSERT_EQ(typename TypeParam::Type(wide), value) << pattern;
    } else if (TypeParam::kMantissa == 2 && magnitude == 0x7C) {
      EXPECT_TRUE(std::isinf(wide)) << pattern;
    } else {
      EXPECT_TRUE(std::isnan(wide)) << pattern;
    }
  }
  EXPECT_EQ(TypeParam::Type::kMax, ValueOf<TypeParam>(TypeParam::kLargest));
}

TYPED_TEST(Float8BitsTest, RoundsEveryBFloat16ToTheNearest) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto x = std::bit_cast<float>(bits << 16);
    ASSERT_EQ(typename TypeParam::Type(x).bits, Nearest<TypeParam>(x)) << x;
  }
}

// Around each value and each middle between neighbours, and a sample of all.
TYPED_TEST(Float8BitsTest, RoundsFloat32ToTheNearest) {
  std::vector<float> values;
  for (uint8_t bits = 0; bits <= TypeParam::kLargest; ++bits) {
    const double value = ValueOf<TypeParam>(bits);
    const double next = ValueOf<TypeParam>(static_cast<uint8_t>(bits + 1));
    for (const double at : {value, (value + next) / 2}) {
      const auto x = static_cast<float>(at);
      values.insert(values.end(),
                    {x, std::nextafter(x, 0.0f), std::nextafter(x, 1e30f)});
    }
  }
  for (uint32_t i = 0; i < 20000; ++i) values.push_back(SampleOf(i));
  for (const float x : values) {
    for (const float y : {x, -x}) {
      ASSERT_EQ(typename TypeParam::Type(y).bits, Nearest<TypeParam>(y)) << y;
    }
  }
}

TYPED_TEST(Float8BitsTest, ConvertsLikePyTorch) {
  Checksum of_bfloat16;
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    of_bfloat16.Add(
        typename TypeParam::Type(std::bit_cast<float>(bits << 16)).bits);
  }
  Checksum of_float32;
  for (uint32_t i = 0; i < 1u << 20; ++i) {
    of_float32.Add(typename TypeParam::Type(SampleOf(i)).bits);
  }
  // tensor/testdata/make_float8.py prints them.
  const bool is_e4m3 = TypeParam::kMantissa == 3;
  EXPECT_EQ(of_bfloat16.value(), is_e4m3 ? 0xb4ca6f38u : 0x93272b82u);
  EXPECT_EQ(of_float32.value(), is_e4m3 ? 0x260b497cu : 0x5cb2ed69u);
}

}  // namespace
}  // namespace crosshatch
