// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_CUDA_ELEMENTWISE_TYPED_CUH_
#define CROSSHATCH_TENSOR_KERNELS_CUDA_ELEMENTWISE_TYPED_CUH_

/// \file
/// The elementwise kernel for the frequent case: operands of one floating point
/// dtype, known to the compiler, of rows of vectors of 16 bytes, with indices
/// of 32 bits. ElementwiseKernel processes all others.

#include <cstdint>

#include "crosshatch/tensor/kernels/cuda/cuda_api.cuh"
#include "crosshatch/tensor/kernels/cuda/element.cuh"
#include "crosshatch/tensor/kernels/cuda/typed_rows.h"

namespace crosshatch::internal {

/// f(in, out) with float in[kIn][N] and out[kOut][N].
template <DType kDType, int kIn, int kOut, typename F>
__global__ void __launch_bounds__(256)
    TypedElementwiseKernel(F f, TypedRows<kIn + kOut> rows) {
  using T = typename StoredAs<kDType>::Type;
  constexpr int N = VectorWidthOf(kDType);
  const uint32_t step = gridDim.x * blockDim.x;
  for (uint32_t v = blockIdx.x * blockDim.x + threadIdx.x; v < rows.vectors;
       v += step) {
    const uint32_t row = rows.vectors_per_row.Divide(v);
    const uint32_t col = (v - row * rows.vectors_per_row.divisor) * N;
    const uint32_t count = rows.cols - col;
    float in[kIn][N];
#pragma unroll
    for (int o = 0; o < kIn; ++o) {
      const T* const from =
          static_cast<const T*>(rows.data[o]) + (row * rows.strides[o] + col);
      Pack<T, N> pack = {};
      if (count >= N) {
        pack = LoadGlobal<Pack<T, N>>(from);
      } else {
#pragma unroll
        for (int i = 0; i < N - 1; ++i) {
          if (static_cast<uint32_t>(i) < count) {
            pack.values[i] = LoadGlobal<T>(from + i);
          }
        }
      }
#pragma unroll
      for (int i = 0; i < N; ++i) {
        in[o][i] = FromStored<float, kDType>(pack.values[i]);
      }
    }
    float out[kOut][N];
    f(in, out);
#pragma unroll
    for (int o = 0; o < kOut; ++o) {
      T* const to = static_cast<T*>(rows.data[kIn + o]) +
                    (row * rows.strides[kIn + o] + col);
      Pack<T, N> pack;
#pragma unroll
      for (int i = 0; i < N; ++i) {
        pack.values[i] = ToStored<kDType>(out[o][i]);
      }
      if (count >= N) {
        StoreGlobal(to, pack);
      } else {
#pragma unroll
        for (int i = 0; i < N - 1; ++i) {
          if (static_cast<uint32_t>(i) < count) {
            StoreGlobal(to + i, pack.values[i]);
          }
        }
      }
    }
  }
}

/// Issues f over the operands, inputs first, if the kernel can process them.
/// \returns whether it can
template <int kIn, int kOut, typename F>
bool TypedElementwise(const char* name, F f, const Strided<kIn + kOut>& strided,
                      KernelContext& context) {
  TypedRows<kIn + kOut> rows;
  if (!rows.Make(strided)) return false;
  const auto launch = [&](auto dtype) {
    LaunchKernel(name,
                 &TypedElementwiseKernel<decltype(dtype)::value, kIn, kOut, F>,
                 GeometryOfItems(rows.vectors), context, f, rows);
  };
  switch (strided.dtypes[0]) {
    case DType::kFloat32:
      launch(DTypeConstant<DType::kFloat32>());
      return true;
    case DType::kBFloat16:
      launch(DTypeConstant<DType::kBFloat16>());
      return true;
    case DType::kFloat16:
      launch(DTypeConstant<DType::kFloat16>());
      return true;
    default:
      return false;
  }
}

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_TENSOR_KERNELS_CUDA_ELEMENTWISE_TYPED_CUH_
