// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_CUDA_ELEMENTWISE_CUH_
#define CROSSHATCH_TENSOR_KERNELS_CUDA_ELEMENTWISE_CUH_

/// \file
/// The kernel of all elementwise ops: it loads vectors of all inputs in the
/// compute type, calls a function on them and stores the outputs. Each byte is
/// moved once.

#include <cstdint>
#include <type_traits>

#include "crosshatch/tensor/kernels/cuda/arithmetic.cuh"
#include "crosshatch/tensor/kernels/cuda/cuda_api.cuh"
#include "crosshatch/tensor/kernels/cuda/element.cuh"
#include "crosshatch/tensor/kernels/cuda/elementwise_typed.cuh"
#include "crosshatch/tensor/kernels/cuda/strided.h"

namespace crosshatch::internal {

/// Options besides a function's operands.
struct ElementwiseOptions {
  WriteMode mode = WriteMode::kOverwrite;
  /// Outputs (bit o: output o) that are not stored.
  uint32_t unwanted = 0;
};

/// `count` of the N elements of an operand; stride 0: one for all.
template <typename C, int N>
__device__ __forceinline__ void LoadVector(const void* data, DType dtype,
                                           int64_t offset, int64_t stride,
                                           int64_t count,
                                           Vector<C, N>& values) {
  if (stride == 0) {
    const C value = LoadElement<C>(data, dtype, offset);
#pragma unroll
    for (int i = 0; i < N; ++i) values[i] = value;
  } else if (count == N) {
    LoadElements(data, dtype, offset, values);
  } else {
    for (int i = 0; i < N; ++i) {
      values[i] = i < count ? LoadElement<C>(data, dtype, offset + i) : C{0};
    }
  }
}

template <bool kAny, typename C, int N>
__device__ __forceinline__ void StoreVector(void* data, DType dtype,
                                            int64_t offset, int64_t count,
                                            const Vector<C, N>& values) {
  if (count == N) {
    StoreElements<kAny>(data, dtype, offset, values);
  } else {
    for (int64_t i = 0; i < count; ++i) {
      const C value[1] = {values[i]};
      StoreElements<kAny>(data, dtype, offset + i, value);
    }
  }
}

/// f(in, out) with C in[kIn][N] and C out[kOut][N].
template <typename C, int N, int kIn, int kOut, bool kAny, typename F>
__global__ void __launch_bounds__(256)
    ElementwiseKernel(F f, Strided<kIn + kOut> strided,
                      ElementwiseOptions options) {
  const int inner = strided.loop.ndim - 1;
  const int64_t row = strided.loop.sizes[inner];
  for (int64_t v = GlobalThread(); v < strided.vectors; v += GlobalThreads()) {
    int64_t offsets[kIn + kOut];
    const int64_t start = strided.Locate(v, offsets);
    const int64_t count = row - start < N ? row - start : N;
    C in[kIn > 0 ? kIn : 1][N];
#pragma unroll
    for (int o = 0; o < kIn; ++o) {
      LoadVector(strided.data[o], strided.dtypes[o], offsets[o],
                 strided.loop.strides[o][inner], count, in[o]);
    }
    C out[kOut][N];
    f(in, out);
#pragma unroll
    for (int o = 0; o < kOut; ++o) {
      if (((options.unwanted >> o) & 1u) != 0) continue;
      void* const to = strided.data[kIn + o];
      const DType dtype = strided.dtypes[kIn + o];
      if (options.mode == WriteMode::kAccumulate) {
        C old[N];
        LoadVector(to, dtype, offsets[kIn + o], 1, count, old);
#pragma unroll
        for (int i = 0; i < N; ++i) out[o][i] = Plus(out[o][i], old[i]);
      }
      StoreVector<kAny>(to, dtype, offsets[kIn + o], count, out[o]);
    }
  }
}

/// Issues f over the operands, inputs first. C is the compute type. kAny:
/// outputs have any dtype, not only those that are computed in C. If F::Typed
/// is there, TypedElementwiseKernel processes what it can.
template <typename C, int kIn, int kOut, bool kAny = false, typename F>
void Elementwise(const char* name, F f, const KernelShape& shape,
                 const StridedOperand (&operands)[kIn + kOut],
                 KernelContext& context, ElementwiseOptions options = {}) {
  constexpr bool kBytes = sizeof(C) == 1;
  constexpr int kWidest = kBytes                  ? 16
                          : sizeof(C) == 4        ? 8
                          : std::is_integral_v<C> ? 4
                                                  : 2;
  const auto strided = MakeStrided(shape, operands, kWidest);
  if constexpr (std::is_same_v<C, float> && requires { typename F::Typed; }) {
    if (options.mode == WriteMode::kOverwrite && options.unwanted == 0 &&
        TypedElementwise<kIn, kOut>(name, f, strided, context)) {
      return;
    }
  }
  const LaunchGeometry geometry = GeometryOfItems(strided.vectors);
  const auto launch = [&](auto width) {
    LaunchKernel(
        name, &ElementwiseKernel<C, decltype(width)::value, kIn, kOut, kAny, F>,
        geometry, context, f, strided, options);
  };
  // The width of bytes is the widest, or 1.
  switch (strided.width) {
    case 16:
      if constexpr (kBytes) launch(std::integral_constant<int, 16>());
      break;
    case 8:
      if constexpr (kWidest == 8) launch(std::integral_constant<int, 8>());
      break;
    case 4:
      if constexpr (kWidest >= 4 && !kBytes) {
        launch(std::integral_constant<int, 4>());
      }
      break;
    case 2:
      if constexpr (sizeof(C) == 8 || (kAny && !kBytes)) {
        launch(std::integral_constant<int, 2>());
      }
      break;
    default:
      launch(std::integral_constant<int, 1>());
  }
}

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_TENSOR_KERNELS_CUDA_ELEMENTWISE_CUH_
