// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/kernels/cpu/targets.h"
// Before the headers that are compiled once for each target.
#include <algorithm>
#include <cstdint>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/float8_bits.h"
#include "crosshatch/tensor/kernels/cpu/entry_points.h"
#include "crosshatch/tensor/kernels/cpu/parallel.h"
#include "crosshatch/tensor/kernels/float8_scale.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/kernels/cpu/float8.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "crosshatch/tensor/kernels/cpu/staging-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace crosshatch {
namespace HWY_NAMESPACE {
namespace {

constexpr int64_t kPiece = 1024;

void Encode(const float* from, DType dtype, int64_t stride, int64_t count,
            uint8_t* to) {
  if (dtype == DType::kFloat8E4M3) {
    for (int64_t i = 0; i < count; ++i) {
      to[i * stride] = internal::Float8E4M3Bits(from[i]);
    }
  } else {
    for (int64_t i = 0; i < count; ++i) {
      to[i * stride] = internal::Float8E5M2Bits(from[i]);
    }
  }
}

void Decode(const uint8_t* from, DType dtype, int64_t stride, int64_t count,
            float* to) {
  if (dtype == DType::kFloat8E4M3) {
    for (int64_t i = 0; i < count; ++i) {
      to[i] = internal::FromFloat8E4M3Bits(from[i * stride]);
    }
  } else {
    for (int64_t i = 0; i < count; ++i) {
      to[i] = internal::FromFloat8E5M2Bits(from[i * stride]);
    }
  }
}

void Float8Convert(const Float8ConvertArgs& args, KernelContext& context) {
  const bool encodes = IsFloat8(args.out.dtype);
  const DType other = encodes ? args.in.dtype : args.out.dtype;
  CH_CHECK(encodes != IsFloat8(args.in.dtype) && IsFloatingPoint(other) &&
           SizeOf(other) <= 4)
      << "float8_convert kernel of " << Name(args.in.dtype) << " to "
      << Name(args.out.dtype);
  const auto loop = internal::StridedLoop::Make(
      args.shape, {args.out.strides, args.in.strides, args.scale.strides}, 0);
  if (loop.total() == 0) return;
  const int64_t to_stride = loop.inner_stride(0);
  const int64_t from_stride = loop.inner_stride(1);
  const int64_t scale_stride = loop.inner_stride(2);
  internal::ForRowPieces(
      context, loop, kPiece, 4,
      [&](const internal::RowCursor& cursor, int64_t start, int64_t count)
          HWY_ATTR {
            HWY_ALIGN float values[kPiece];
            const void* const from =
                internal::ElementAt(args.in.data, args.in.dtype,
                                    cursor.offset(1) + start * from_stride);
            void* const to =
                internal::ElementAt(args.out.data, args.out.dtype,
                                    cursor.offset(0) + start * to_stride);
            if (encodes) {
              LoadRun(from, args.in.dtype, from_stride, count, values);
            } else {
              Decode(static_cast<const uint8_t*>(from), args.in.dtype,
                     from_stride, count, values);
            }
            if (args.scale.data != nullptr) {
              const float* const scale =
                  static_cast<const float*>(args.scale.data) +
                  cursor.offset(2) + start * scale_stride;
              for (int64_t i = 0; i < count; ++i) {
                values[i] *= scale[i * scale_stride];
              }
            }
            if (encodes) {
              Encode(values, args.out.dtype, to_stride, count,
                     static_cast<uint8_t*>(to));
            } else {
              StoreRun(values, to, args.out.dtype, to_stride, count);
            }
          });
}

/// out = sums * scale_a * scale_b; the sums are contiguous.
void ScaleProduct(const ScaledMatMulArgs& args, const float* sums,
                  KernelContext& context) {
  const int64_t by_row = args.scales_by_row ? 1 : 0;
  const int64_t pieces = (args.n + kPiece - 1) / kPiece;
  internal::ForRanges(
      context, args.m * pieces, std::min(args.n, kPiece),
      [&](int64_t begin, int64_t end) HWY_ATTR {
        HWY_ALIGN float values[kPiece];
        for (int64_t unit = begin; unit < end; ++unit) {
          const int64_t i = unit / pieces;
          const int64_t start = unit % pieces * kPiece;
          const int64_t count = std::min(kPiece, args.n - start);
          const float* const from = sums + i * args.n + start;
          const float scale_a = args.scale_a[i * by_row];
          const float* const scale_b = args.scale_b + start * by_row;
          for (int64_t j = 0; j < count; ++j) {
            values[j] = from[j] * scale_a * scale_b[j * by_row];
          }
          StoreRun(values,
                   internal::ElementAt(
                       args.out.data, args.out_dtype,
                       i * args.out.row_stride + start * args.out.col_stride),
                   args.out_dtype, args.out.col_stride, count);
        }
      });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace crosshatch
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace crosshatch {

CH_CPU_KERNEL(Float8Convert)
HWY_EXPORT(ScaleProduct);

namespace internal {
namespace {

int64_t RoundedElements(int64_t elements) { return (elements + 15) / 16 * 16; }

/// Converts a matrix to contiguous floats in the order of its own memory.
MatMulInput Decoded(const MatMulInput& matrix, DType dtype, int64_t rows,
                    int64_t cols, float* to, KernelContext& context) {
  const bool by_column = matrix.row_stride == 1 && matrix.col_stride != 1;
  MatMulInput decoded = {
      .data = to,
      .row_stride = by_column ? 1 : std::max<int64_t>(cols, 1),
      .col_stride = by_column ? std::max<int64_t>(rows, 1) : 1};
  Float8ConvertArgs convert;
  convert.shape = {2, {rows, cols}};
  convert.in = {matrix.data, dtype, {matrix.row_stride, matrix.col_stride}};
  convert.out = {to, DType::kFloat32, {decoded.row_stride, decoded.col_stride}};
  CpuFloat8Convert(convert, context);
  return decoded;
}

}  // namespace

void CpuFloat8Scale(const Float8ScaleArgs& args, KernelContext& /*context*/) {
  for (int64_t i = 0; i < args.count; ++i) {
    args.scale[i] =
        Float8ScaleOf(args.amax[i], args.largest, args.power_of_two);
    args.inverse[i] = 1 / args.scale[i];
  }
}

int64_t CpuScaledMatMulWorkspaceBytes(const ScaledMatMulArgs& args) {
  return 4 *
         (RoundedElements(args.m * args.k) + RoundedElements(args.k * args.n) +
          RoundedElements(args.m * args.n));
}

void CpuScaledMatMul(const ScaledMatMulArgs& args, KernelContext& context) {
  if (args.m * args.n == 0) return;
  float* const a = static_cast<float*>(args.workspace);
  float* const b = a + RoundedElements(args.m * args.k);
  float* const sums = b + RoundedElements(args.k * args.n);
  MatMulArgs product;
  product.m = args.m;
  product.n = args.n;
  product.k = args.k;
  product.a = Decoded(args.a, args.a_dtype, args.m, args.k, a, context);
  product.b = Decoded(args.b, args.b_dtype, args.k, args.n, b, context);
  product.out = {.data = sums, .row_stride = args.n, .col_stride = 1};
  CH_CHECK_EQ(CpuMatMulWorkspaceBytes(product), 0) << "scaled_matmul kernel";
  CpuMatMul(product, context);
  HWY_DYNAMIC_DISPATCH(ScaleProduct)(args, sums, context);
}

}  // namespace internal
}  // namespace crosshatch
#endif  // HWY_ONCE
