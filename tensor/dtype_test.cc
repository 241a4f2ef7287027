// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/dtype.h"

#include <bit>
#include <cmath>
#include <limits>
#include <sstream>
#include <vector>

#include "Eigen/Core"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

uint32_t Bits(float value) { return std::bit_cast<uint32_t>(value); }

float FromBits(uint32_t bits) { return std::bit_cast<float>(bits); }

float EigenWiden(BFloat16 value) {
  return static_cast<float>(
      Eigen::numext::bit_cast<Eigen::bfloat16>(value.bits));
}

float EigenWiden(Float16 value) {
  return static_cast<float>(Eigen::numext::bit_cast<Eigen::half>(value.bits));
}

uint16_t EigenNarrow(float value, BFloat16) {
  return Eigen::numext::bit_cast<uint16_t>(Eigen::bfloat16(value));
}

uint16_t EigenNarrow(float value, Float16) {
  return Eigen::numext::bit_cast<uint16_t>(Eigen::half(value));
}

template <typename T>
class Float16BitsTest : public ::testing::Test {};
using Types = ::testing::Types<BFloat16, Float16>;
TYPED_TEST_SUITE(Float16BitsTest, Types);

TYPED_TEST(Float16BitsTest, WidensAllPatternsAndBack) {
  for (uint32_t pattern = 0; pattern < 0x10000; ++pattern) {
    TypeParam value;
    value.bits = static_cast<uint16_t>(pattern);
    const auto wide = static_cast<float>(value);
    if (std::isnan(EigenWiden(value))) {
      EXPECT_TRUE(std::isnan(wide)) << pattern;
      EXPECT_TRUE(std::isnan(static_cast<float>(TypeParam(wide)))) << pattern;
    } else {
      ASSERT_EQ(Bits(wide), Bits(EigenWiden(value))) << pattern;
      ASSERT_EQ(TypeParam(wide), value) << pattern;
    }
  }
}

TYPED_TEST(Float16BitsTest, NarrowsLikeEigen) {
  // Around every value, around every middle between neighbours, and a sweep of
  // all exponents.
  std::vector<float> values;
  for (uint32_t pattern = 0; pattern < 0x8000; ++pattern) {
    TypeParam value, next;
    value.bits = static_cast<uint16_t>(pattern);
    next.bits = static_cast<uint16_t>(pattern + 1);
    const uint32_t a = Bits(static_cast<float>(value));
    const uint32_t middle = a + (Bits(static_cast<float>(next)) - a) / 2;
    for (uint32_t bits : {a - 1, a, a + 1, middle - 1, middle, middle + 1}) {
      values.push_back(FromBits(bits));
    }
  }
  for (uint64_t bits = 0; bits < 0x80000000u; bits += 4099 * 31) {
    values.push_back(FromBits(static_cast<uint32_t>(bits)));
  }
  for (float value : values) {
    for (float x : {value, -value}) {
      const TypeParam narrow(x);
      if (std::isnan(x)) {
        EXPECT_TRUE(std::isnan(static_cast<float>(narrow))) << Bits(x);
      } else {
        ASSERT_EQ(narrow.bits, EigenNarrow(x, TypeParam())) << x;
      }
    }
  }
}

TYPED_TEST(Float16BitsTest, KeepsNanWhateverItsPayload) {
  for (uint32_t payload : {1u, 0x1FFFu, 0x8000u, 0x400000u, 0x7FFFFFu}) {
    for (uint32_t sign : {0u, 0x80000000u}) {
      const TypeParam narrow(FromBits(sign | 0x7F800000u | payload));
      EXPECT_TRUE(std::isnan(static_cast<float>(narrow))) << payload;
    }
  }
}

TEST(DTypeTest, SizesNamesAndTypesAgree) {
  EXPECT_EQ(SizeOf(DTypeOf<float>), int64_t{sizeof(float)});
  EXPECT_EQ(SizeOf(DTypeOf<double>), int64_t{sizeof(double)});
  EXPECT_EQ(SizeOf(DTypeOf<BFloat16>), int64_t{sizeof(BFloat16)});
  EXPECT_EQ(SizeOf(DTypeOf<Float16>), int64_t{sizeof(Float16)});
  EXPECT_EQ(SizeOf(DTypeOf<int32_t>), int64_t{sizeof(int32_t)});
  EXPECT_EQ(SizeOf(DTypeOf<int64_t>), int64_t{sizeof(int64_t)});
  EXPECT_EQ(SizeOf(DTypeOf<uint16_t>), int64_t{sizeof(uint16_t)});
  EXPECT_EQ(SizeOf(DTypeOf<bool>), int64_t{sizeof(bool)});
  std::ostringstream names;
  for (DType dtype : {kFloat32, kFloat64, kBFloat16, kFloat16, kInt32, kInt64,
                      kUInt16, kBool, kFloat8E4M3, kFloat8E5M2, kUInt8}) {
    names << dtype << " ";
  }
  EXPECT_EQ(names.str(), "f32 f64 bf16 f16 i32 i64 u16 bool f8e4m3 f8e5m2 u8 ");
}

}  // namespace
}  // namespace crosshatch
