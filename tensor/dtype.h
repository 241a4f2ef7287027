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
  kFloat8E4M3,
  kFloat8E5M2,
  kUInt8,
};

inline constexpr DType kFloat32 = DType::kFloat32;
inline constexpr DType kFloat64 = DType::kFloat64;
inline constexpr DType kBFloat16 = DType::kBFloat16;
inline constexpr DType kFloat16 = DType::kFloat16;
inline constexpr DType kInt32 = DType::kInt32;
inline constexpr DType kInt64 = DType::kInt64;
inline constexpr DType kUInt16 = DType::kUInt16;
inline constexpr DType kBool = DType::kBool;
inline constexpr DType kFloat8E4M3 = DType::kFloat8E4M3;
inline constexpr DType kFloat8E5M2 = DType::kFloat8E5M2;
inline constexpr DType kUInt8 = DType::kUInt8;

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
    case DType::kFloat8E4M3:
    case DType::kFloat8E5M2:
    case DType::kUInt8:
      return 1;
  }
  return 0;
}

/// Returns whether ops compute with elements of `dtype` as real numbers. Not
/// float8, which is for storage and scaled products only.
constexpr bool IsFloatingPoint(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kFloat64 ||
         dtype == DType::kBFloat16 || dtype == DType::kFloat16;
}

constexpr bool IsFloat8(DType dtype) {
  return dtype == DType::kFloat8E4M3 || dtype == DType::kFloat8E5M2;
}

/// Returns whether no arithmetic exists for `dtype`. Such tensors are made,
/// viewed, copied and communicated. Float8 is also converted and multiplied
/// (tensor/ops/float8.h).
constexpr bool IsStorageOnly(DType dtype) {
  return IsFloat8(dtype) || dtype == DType::kUInt8;
}

/// "f32", "f64", "bf16", "f16", "i32", "i64", "u16", "bool", "f8e4m3",
/// "f8e5m2", "u8".
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

/// 8-bit floats of the Open Compute Project, as PyTorch's float8_e4m3fn and
/// float8_e5m2. Conversions from float round to nearest even and saturate:
/// values beyond the largest finite one, infinities included, become that. NaN
/// becomes the NaN whose bits are all ones but the sign.
struct Float8E4M3 {
  static constexpr float kMax = 448;
  uint8_t bits = 0;
  Float8E4M3() = default;
  explicit Float8E4M3(float value);
  explicit operator float() const;
  friend bool operator==(Float8E4M3, Float8E4M3) = default;
};
struct Float8E5M2 {
  static constexpr float kMax = 57344;
  uint8_t bits = 0;
  Float8E5M2() = default;
  explicit Float8E5M2(float value);
  explicit operator float() const;
  friend bool operator==(Float8E5M2, Float8E5M2) = default;
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
template <>
inline constexpr DType DTypeOf<Float8E4M3> = DType::kFloat8E4M3;
template <>
inline constexpr DType DTypeOf<Float8E5M2> = DType::kFloat8E5M2;
template <>
inline constexpr DType DTypeOf<uint8_t> = DType::kUInt8;

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_DTYPE_H_
