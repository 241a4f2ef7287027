// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_CPU_ELEMENT_H_
#define CROSSHATCH_TENSOR_KERNELS_CPU_ELEMENT_H_

/// \file
/// Conversions of single elements, without branches so that loops vectorize,
/// with the results of dtype.h.

#include <bit>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/dtype.h"

namespace crosshatch::internal {

inline float ToFloat(BFloat16 x) {
  return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16);
}
inline BFloat16 ToBFloat16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t nan = (bits >> 16) | 0x40u;
  BFloat16 result;
  result.bits =
      static_cast<uint16_t>((bits & 0x7FFFFFFFu) > 0x7F800000u ? nan : rounded);
  return result;
}

// Half precision by exact scaling (after Maratyszcza's FP16): the
// multiplication and addition of floats do the rounding and the denormal
// numbers.
inline float ToFloat(Float16 x) {
  const uint32_t word = static_cast<uint32_t>(x.bits) << 16;
  const uint32_t sign = word & 0x80000000u;
  const uint32_t twice = word + word;
  const float normal =
      std::bit_cast<float>((twice >> 4) + (0xE0u << 23)) * 0x1.0p-112f;
  const float denormal =
      std::bit_cast<float>((twice >> 17) | (126u << 23)) - 0.5f;
  return std::bit_cast<float>(sign | (twice < (1u << 27)
                                          ? std::bit_cast<uint32_t>(denormal)
                                          : std::bit_cast<uint32_t>(normal)));
}
inline Float16 ToFloat16(float x) {
  const uint32_t word = std::bit_cast<uint32_t>(x);
  const uint32_t sign = (word >> 16) & 0x8000u;
  const uint32_t twice = word + word;
  const float magnitude = std::bit_cast<float>(word & 0x7FFFFFFFu);
  uint32_t bias = twice & 0xFF000000u;
  bias = bias < 0x71000000u ? 0x71000000u : bias;
  const float base = std::bit_cast<float>((bias >> 1) + 0x07800000u) +
                     (magnitude * 0x1.0p+112f) * 0x1.0p-110f;
  const uint32_t bits = std::bit_cast<uint32_t>(base);
  const uint32_t finite = ((bits >> 13) & 0x7C00u) + (bits & 0xFFFu);
  // A NaN keeps the upper bits of its payload and becomes quiet.
  const uint32_t nan = 0x7E00u | ((word >> 13) & 0x1FFu);
  Float16 result;
  result.bits =
      static_cast<uint16_t>(sign | (twice > 0xFF000000u ? nan : finite));
  return result;
}

/// Value-preserving except for rounding; to integers it truncates and
/// saturates, NaN gives 0. Between f64 and 16-bit floats by way of f32.
template <typename To, typename From>
inline To ConvertElement(From x) {
  if constexpr (std::is_same_v<To, From>) {
    return x;
  } else if constexpr (std::is_same_v<From, BFloat16> ||
                       std::is_same_v<From, Float16>) {
    return ConvertElement<To>(ToFloat(x));
  } else if constexpr (std::is_same_v<To, bool>) {
    return x != From(0);
  } else if constexpr (std::is_same_v<To, BFloat16>) {
    return ToBFloat16(static_cast<float>(x));
  } else if constexpr (std::is_same_v<To, Float16>) {
    return ToFloat16(static_cast<float>(x));
  } else if constexpr (std::is_floating_point_v<From> &&
                       std::is_integral_v<To>) {
    // Both limits are exact or round up to a power of two, so that values below
    // the limit fit the cast.
    constexpr From kLow = static_cast<From>(std::numeric_limits<To>::min());
    constexpr From kHigh = static_cast<From>(std::numeric_limits<To>::max());
    if (!(x == x)) return 0;
    if (x <= kLow) return std::numeric_limits<To>::min();
    if (x >= kHigh) return std::numeric_limits<To>::max();
    return static_cast<To>(x);
  } else {
    return static_cast<To>(x);
  }
}

/// Calls f(T()) with the C++ type of `dtype`'s elements.
template <typename F>
inline void DispatchDType(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kFloat32:
      return f(float{});
    case DType::kFloat64:
      return f(double{});
    case DType::kBFloat16:
      return f(BFloat16{});
    case DType::kFloat16:
      return f(Float16{});
    case DType::kInt32:
      return f(int32_t{});
    case DType::kInt64:
      return f(int64_t{});
    case DType::kUInt16:
      return f(uint16_t{});
    case DType::kBool:
      return f(bool{});
    case DType::kFloat8E4M3:
    case DType::kFloat8E5M2:
    case DType::kUInt8:
      CH_CHECK(false) << "arithmetic or a conversion of " << Name(dtype)
                      << ", which is for storage; convert float8 by ToDType";
  }
}

/// Calls f(U()) with the unsigned integer of the size of `dtype`'s elements.
template <typename F>
inline void DispatchSize(DType dtype, F&& f) {
  switch (SizeOf(dtype)) {
    case 1:
      return f(uint8_t{});
    case 2:
      return f(uint16_t{});
    case 4:
      return f(uint32_t{});
    default:
      return f(uint64_t{});
  }
}

/// Address of element `index`.
inline const void* ElementAt(const void* data, DType dtype, int64_t index) {
  return static_cast<const char*>(data) + index * SizeOf(dtype);
}
inline void* ElementAt(void* data, DType dtype, int64_t index) {
  return static_cast<char*>(data) + index * SizeOf(dtype);
}

/// Returns index `i` of a tensor of indices: i32, i64 or u16.
inline int64_t IndexAt(const char* kernel, const void* indices, DType dtype,
                       int64_t i) {
  switch (dtype) {
    case DType::kInt32:
      return static_cast<const int32_t*>(indices)[i];
    case DType::kUInt16:
      return static_cast<const uint16_t*>(indices)[i];
    default:
      CH_CHECK(dtype == DType::kInt64)
          << kernel << " kernel: indices of " << Name(dtype);
      return static_cast<const int64_t*>(indices)[i];
  }
}

/// Calls f(float()), f(double()) or f(int64_t()): the type that elements of
/// `dtype` are computed in.
template <typename F>
inline void DispatchCompute(DType dtype, F&& f) {
  CH_CHECK(!IsStorageOnly(dtype)) << "arithmetic on " << Name(dtype);
  if (dtype == DType::kFloat64) return f(double{});
  if (IsFloatingPoint(dtype)) return f(float{});
  f(int64_t{});
}

/// Calls f(float()) or f(double()) for a floating point dtype.
template <typename F>
inline void DispatchFloat(DType dtype, const char* kernel, F&& f) {
  CH_CHECK(IsFloatingPoint(dtype)) << kernel << " of " << Name(dtype);
  if (dtype == DType::kFloat64) return f(double{});
  return f(float{});
}

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_TENSOR_KERNELS_CPU_ELEMENT_H_
