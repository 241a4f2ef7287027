// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_FLOAT8_KERNELS_H_
#define CROSSHATCH_TENSOR_KERNELS_FLOAT8_KERNELS_H_

/// \file
/// Scales, conversions and products of float8.

#include <cstdint>

#include "crosshatch/tensor/dtype.h"
#include "crosshatch/tensor/kernels/matmul_kernels.h"
#include "crosshatch/tensor/kernels/operands.h"

namespace crosshatch {

/// For each of `count` contiguous elements:
///   scale = largest / max(amax, 1e-12), in double, rounded to float and, with
///   power_of_two, down to a power of two; inverse = 1 / scale.
/// NaN stays NaN.
struct Float8ScaleArgs {
  int64_t count = 0;
  const float* amax = nullptr;
  float* scale = nullptr;
  float* inverse = nullptr;
  float largest = 0;
  bool power_of_two = false;
};

/// out = in * scale, multiplied in float and converted (dtype.h). One of `in`
/// and `out` is float8; the other is f32, bf16 or f16.
struct Float8ConvertArgs {
  KernelShape shape;
  KernelInput in;
  /// Of f32; its data may be null: no scale.
  KernelInput scale;
  KernelOutput out;
};

/// out[i][j] = (sum over k of a[i][k] * b[k][j]) * scale_a[i] * scale_b[j] for
/// float8 a (m, k) and b (k, n), at most one of them e5m2. Products and sums
/// are in float. |error| <= gamma(k + 2) * |scale_a| |a| |b| |scale_b|, plus
/// the rounding to a 16-bit out.
struct ScaledMatMulArgs {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  /// Their batch strides are not used.
  MatMulInput a;
  MatMulInput b;
  MatMulOutput out;
  DType a_dtype = DType::kFloat8E4M3;
  DType b_dtype = DType::kFloat8E4M3;
  /// f32, bf16 or f16.
  DType out_dtype = DType::kFloat32;
  /// One element each or, with scales_by_row, m and n contiguous ones.
  const float* scale_a = nullptr;
  const float* scale_b = nullptr;
  bool scales_by_row = false;
  /// scaled_matmul_workspace_bytes(args) bytes, aligned to 64; null if 0.
  void* workspace = nullptr;
};

/// The list of this family (kernel_table.h).
#define CH_FLOAT8_KERNELS(K, W, d)                       \
  K(d, float8_scale, Float8Scale, Float8ScaleArgs)       \
  K(d, float8_convert, Float8Convert, Float8ConvertArgs) \
  W(d, scaled_matmul, ScaledMatMul, ScaledMatMulArgs)

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_KERNELS_FLOAT8_KERNELS_H_
