// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_CUDA_ELEMENT_CUH_
#define CROSSHATCH_TENSOR_KERNELS_CUDA_ELEMENT_CUH_

/// \file
/// Elements of any dtype in their compute type: float for f32 and the 16-bit
/// floats, double for f64, int64_t for all others. The dtype is a run-time
/// value, equal for all threads: a load costs a branch without divergence, and
/// saves a kernel for each dtype.

#include <cstdint>
#include <limits>
#include <type_traits>

#include "crosshatch/tensor/dtype.h"
#include "crosshatch/tensor/half_bits.h"
#include "crosshatch/tensor/kernels/cuda/cuda_api.cuh"

namespace crosshatch::internal {

/// N elements in memory that are loaded and stored by one instruction.
template <typename T, int N>
struct alignas(sizeof(T) * N) Pack {
  static_assert(sizeof(T) * N <= 16);
  T values[N];
};

/// N elements in a thread's registers.
template <typename C, int N>
using Vector = C[N];

/// The memory representation of an element of dtype D; 16-bit floats are their
/// bits.
template <DType D>
struct StoredAs;
template <>
struct StoredAs<DType::kFloat32> {
  using Type = float;
};
template <>
struct StoredAs<DType::kFloat64> {
  using Type = double;
};
template <>
struct StoredAs<DType::kBFloat16> {
  using Type = uint16_t;
};
template <>
struct StoredAs<DType::kFloat16> {
  using Type = uint16_t;
};
template <>
struct StoredAs<DType::kInt32> {
  using Type = int32_t;
};
template <>
struct StoredAs<DType::kInt64> {
  using Type = int64_t;
};
template <>
struct StoredAs<DType::kUInt16> {
  using Type = uint16_t;
};
template <>
struct StoredAs<DType::kBool> {
  using Type = uint8_t;
};

template <DType D>
using DTypeConstant = std::integral_constant<DType, D>;

/// Calls f(DTypeConstant<dtype>()).
template <typename F>
__device__ __forceinline__ void DispatchOnDevice(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kFloat32:
      return f(DTypeConstant<DType::kFloat32>());
    case DType::kFloat64:
      return f(DTypeConstant<DType::kFloat64>());
    case DType::kBFloat16:
      return f(DTypeConstant<DType::kBFloat16>());
    case DType::kFloat16:
      return f(DTypeConstant<DType::kFloat16>());
    case DType::kInt32:
      return f(DTypeConstant<DType::kInt32>());
    case DType::kInt64:
      return f(DTypeConstant<DType::kInt64>());
    case DType::kUInt16:
      return f(DTypeConstant<DType::kUInt16>());
    case DType::kBool:
      return f(DTypeConstant<DType::kBool>());
    case DType::kFloat8E4M3:
    case DType::kFloat8E5M2:
    case DType::kUInt8:
      break;  // For storage only: a launch checks it.
  }
}

/// Returns whether C is the compute type of operands of dtype D.
template <typename C>
constexpr bool IsOperandOf(DType dtype) {
  if (dtype == DType::kBool) return true;
  if (std::is_integral_v<C>) return !IsFloatingPoint(dtype);
  return IsFloatingPoint(dtype) &&
         (std::is_same_v<C, double> || dtype != DType::kFloat64);
}

__device__ __forceinline__ float WidenFloat16(uint16_t bits) {
#if defined(__CUDA_ARCH__)
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
#else
  return FromFloat16Bits(bits);
#endif
}

__device__ __forceinline__ uint16_t NarrowToFloat16(float value) {
#if defined(__CUDA_ARCH__)
  // The instruction gives one NaN for all.
  if (value != value) return Float16Bits(value);
  uint16_t bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
#else
  return Float16Bits(value);
#endif
}

template <typename C, DType D>
__device__ __forceinline__ C FromStored(typename StoredAs<D>::Type stored) {
  if constexpr (D == DType::kBFloat16) {
    return static_cast<C>(FromBFloat16Bits(stored));
  } else if constexpr (D == DType::kFloat16) {
    return static_cast<C>(WidenFloat16(stored));
  } else if constexpr (D == DType::kBool) {
    return static_cast<C>(stored != 0 ? 1 : 0);
  } else {
    return static_cast<C>(stored);
  }
}

/// Floating point to integer: towards zero, to the nearest limit, NaN to 0.
template <typename T, typename C>
__device__ __forceinline__ T Saturated(C value) {
  // The limits are powers of two, or rounded up to one.
  constexpr C kLow = static_cast<C>(std::numeric_limits<T>::min());
  constexpr C kHigh = static_cast<C>(std::numeric_limits<T>::max());
  if (value != value) return 0;
  if (value <= kLow) return std::numeric_limits<T>::min();
  if (value >= kHigh) return std::numeric_limits<T>::max();
  return static_cast<T>(value);
}

/// Converts as CopyArgs.
template <DType D, typename C>
__device__ __forceinline__ typename StoredAs<D>::Type ToStored(C value) {
  using T = typename StoredAs<D>::Type;
  if constexpr (D == DType::kBFloat16) {
    return BFloat16Bits(static_cast<float>(value));
  } else if constexpr (D == DType::kFloat16) {
    return NarrowToFloat16(static_cast<float>(value));
  } else if constexpr (D == DType::kBool) {
    return value != 0 ? 1 : 0;
  } else if constexpr (std::is_integral_v<T> && !std::is_integral_v<C>) {
    return Saturated<T>(value);
  } else {
    return static_cast<T>(value);
  }
}

/// The compute type of copies of 1-byte elements: their bits, whatever the
/// dtype.
using ByteBits = uint8_t;

/// Loads the N elements from `index` on, which are aligned if they fill a
/// vector. Does nothing for dtypes that are not computed in C.
template <int N, typename C>
__device__ __forceinline__ void LoadElements(const void* data, DType dtype,
                                             int64_t index,
                                             Vector<C, N>& values) {
  if constexpr (std::is_same_v<C, ByteBits>) {
    const auto pack = LoadGlobal<Pack<ByteBits, N>>(
        static_cast<const ByteBits*>(data) + index);
#pragma unroll
    for (int i = 0; i < N; ++i) values[i] = pack.values[i];
    return;
  }
  DispatchOnDevice(dtype, [&](auto constant) {
    constexpr DType kDType = decltype(constant)::value;
    if constexpr (IsOperandOf<C>(kDType)) {
      using T = typename StoredAs<kDType>::Type;
      constexpr int kPack =
          N * sizeof(T) > 16 ? static_cast<int>(16 / sizeof(T)) : N;
      const T* const from = static_cast<const T*>(data) + index;
#pragma unroll
      for (int i = 0; i < N; i += kPack) {
        const auto pack = LoadGlobal<Pack<T, kPack>>(from + i);
#pragma unroll
        for (int j = 0; j < kPack; ++j) {
          values[i + j] = FromStored<C, kDType>(pack.values[j]);
        }
      }
    }
  });
}

/// Converts and stores: with kAny any dtype, otherwise those that are computed
/// in C.
template <bool kAny = false, int N, typename C>
__device__ __forceinline__ void StoreElements(void* data, DType dtype,
                                              int64_t index,
                                              const Vector<C, N>& values) {
  if constexpr (std::is_same_v<C, ByteBits>) {
    Pack<ByteBits, N> pack;
#pragma unroll
    for (int i = 0; i < N; ++i) pack.values[i] = values[i];
    StoreGlobal(static_cast<ByteBits*>(data) + index, pack);
    return;
  }
  DispatchOnDevice(dtype, [&](auto constant) {
    constexpr DType kDType = decltype(constant)::value;
    if constexpr (kAny || IsOperandOf<C>(kDType)) {
      using T = typename StoredAs<kDType>::Type;
      constexpr int kPack =
          N * sizeof(T) > 16 ? static_cast<int>(16 / sizeof(T)) : N;
      T* const to = static_cast<T*>(data) + index;
#pragma unroll
      for (int i = 0; i < N; i += kPack) {
        Pack<T, kPack> pack;
#pragma unroll
        for (int j = 0; j < kPack; ++j) {
          pack.values[j] = ToStored<kDType>(values[i + j]);
        }
        StoreGlobal(to + i, pack);
      }
    }
  });
}

template <typename C>
__device__ __forceinline__ C LoadElement(const void* data, DType dtype,
                                         int64_t index) {
  C value[1] = {};
  LoadElements(data, dtype, index, value);
  return value[0];
}

template <typename C>
__device__ __forceinline__ void StoreElement(void* data, DType dtype,
                                             int64_t index, C value) {
  const C values[1] = {value};
  StoreElements(data, dtype, index, values);
}

/// An index of an i32, i64 or u16 tensor.
__device__ __forceinline__ int64_t LoadIndex(const void* data, DType dtype,
                                             int64_t index) {
  return LoadElement<int64_t>(data, dtype, index);
}

/// Copies an element of `size` bytes; zero bytes if the source is null.
__device__ __forceinline__ void CopyBits(void* to, int64_t to_index,
                                         const void* from, int64_t from_index,
                                         int64_t size) {
  const auto copy = [&](auto zero) {
    using T = decltype(zero);
    T value = 0;
    if (from != nullptr) {
      value = LoadGlobal<T>(static_cast<const T*>(from) + from_index);
    }
    StoreGlobal(static_cast<T*>(to) + to_index, value);
  };
  switch (size) {
    case 1:
      return copy(uint8_t{});
    case 2:
      return copy(uint16_t{});
    case 4:
      return copy(uint32_t{});
    default:
      return copy(uint64_t{});
  }
}

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_TENSOR_KERNELS_CUDA_ELEMENT_CUH_
