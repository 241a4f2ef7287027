// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_DTYPE_H_
#define CROSSHATCH_TENSOR_DTYPE_H_

/// \file
/// Element types.

#include <cstdint>
#include <ostream>

namespace crosshatch {

enum class DType : uint8_t {
  kFloat32,
  kFloat64,
  kBFloat16,
  kFloat16,
  kInt32,
  kInt64,
  kUInt16,
  kBool,
};

inline constexpr DType kFloat32 = DType::kFloat32;
inline constexpr DType kFloat64 = DType::kFloat64;
inline constexpr DType kBFloat16 = DType::kBFloat16;
inline constexpr DType kFloat16 = DType::kFloat16;
inline constexpr DType kInt32 = DType::kInt32;
inline constexpr DType kInt64 = DType::kInt64;
inline constexpr DType kUInt16 = DType::kUInt16;
inline constexpr DType kBool = DType::kBool;

/// Size of one element in bytes.
constexpr int64_t SizeOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
    case DType::kInt64:
      return 8;
    case DType::kFloat32:
    case DType::kInt32:
      return 4;
    case DType::kBFloat16:
    case DType::kFloat16:
    case DType::kUInt16:
      return 2;
    case DType::kBool:
      return 1;
  }
  return 0;
}

constexpr bool IsFloatingPoint(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kFloat64 ||
         dtype == DType::kBFloat16 || dtype == DType::kFloat16;
}

/// "f32", "f64", "bf16", "f16", "i32", "i64", "u16", "bool".
const char* Name(DType dtype);
std::ostream& operator<<(std::ostream& out, DType dtype);

/// Storage-only 16-bit floats. Arithmetic on them happens in float inside
/// kernels. Conversions round to nearest even and keep NaN.
struct BFloat16 {
  uint16_t bits = 0;
  BFloat16() = default;
  explicit BFloat16(float value);
  explicit operator float() const;
  friend bool operator==(BFloat16, BFloat16) = default;
};
struct Float16 {
  uint16_t bits = 0;
  Float16() = default;
  explicit Float16(float value);
  explicit operator float() const;
  friend bool operator==(Float16, Float16) = default;
};

/// DTypeOf<T>: the DType of a C++ element type.
template <typename T>
inline constexpr DType DTypeOf = T::no_such_element_type;
template <>
inline constexpr DType DTypeOf<float> = DType::kFloat32;
template <>
inline constexpr DType DTypeOf<double> = DType::kFloat64;
template <>
inline constexpr DType DTypeOf<BFloat16> = DType::kBFloat16;
template <>
inline constexpr DType DTypeOf<Float16> = DType::kFloat16;
template <>
inline constexpr DType DTypeOf<int32_t> = DType::kInt32;
template <>
inline constexpr DType DTypeOf<int64_t> = DType::kInt64;
template <>
inline constexpr DType DTypeOf<uint16_t> = DType::kUInt16;
template <>
inline constexpr DType DTypeOf<bool> = DType::kBool;

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_DTYPE_H_
