// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/float8_bits.h"
#include "crosshatch/tensor/kernels/cuda/elementwise.cuh"
#include "crosshatch/tensor/kernels/cuda/entry_points.h"
#include "crosshatch/tensor/kernels/cuda/gemm.h"
#include "crosshatch/tensor/kernels/float8_scale.h"

namespace crosshatch::internal {
namespace {

__global__ void __launch_bounds__(256) Float8ScaleKernel(Float8ScaleArgs args) {
  for (int64_t i = GlobalThread(); i < args.count; i += GlobalThreads()) {
    const float scale = Float8ScaleOf(LoadGlobal<float>(args.amax + i),
                                      args.largest, args.power_of_two);
    StoreGlobal(args.scale + i, scale);
    StoreGlobal(args.inverse + i, 1 / scale);
  }
}

__device__ __forceinline__ ByteBits Encoded(float value, DType dtype) {
  return dtype == DType::kFloat8E4M3 ? Float8E4M3Bits(value)
                                     : Float8E5M2Bits(value);
}

__device__ __forceinline__ float Decoded(ByteBits bits, DType dtype) {
  return dtype == DType::kFloat8E4M3 ? FromFloat8E4M3Bits(bits)
                                     : FromFloat8E5M2Bits(bits);
}

/// Operands: in, scale, out.
template <int N, bool kEncodes>
__global__ void __launch_bounds__(256) Float8ConvertKernel(Strided<3> strided) {
  using In = std::conditional_t<kEncodes, float, ByteBits>;
  using Out = std::conditional_t<kEncodes, ByteBits, float>;
  const int inner = strided.loop.ndim - 1;
  const int64_t row = strided.loop.sizes[inner];
  for (int64_t v = GlobalThread(); v < strided.vectors; v += GlobalThreads()) {
    int64_t offsets[3];
    const int64_t start = strided.Locate(v, offsets);
    const int64_t count = row - start < N ? row - start : N;
    In in[N];
    float scale[N];
    Out out[N];
    LoadVector(strided.data[0], strided.dtypes[0], offsets[0],
               strided.loop.strides[0][inner], count, in);
    if (strided.data[1] != nullptr) {
      LoadVector(strided.data[1], strided.dtypes[1], offsets[1],
                 strided.loop.strides[1][inner], count, scale);
    }
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float factor = strided.data[1] != nullptr ? scale[i] : 1.0f;
      if constexpr (kEncodes) {
        out[i] = Encoded(in[i] * factor, strided.dtypes[2]);
      } else {
        out[i] = Decoded(in[i], strided.dtypes[0]) * factor;
      }
    }
    StoreVector<false>(strided.data[2], strided.dtypes[2], offsets[2], count,
                       out);
  }
}

template <bool kEncodes>
void Convert(const Float8ConvertArgs& args, KernelContext& context) {
  const auto strided = MakeStrided(
      args.shape,
      {AsOperand(args.in), AsOperand(args.scale), AsOperand(args.out)}, 8);
  // 8 elements of a 16-bit float, or 4 of float32, are 16 bytes.
  auto* const kernel = strided.width == 8   ? &Float8ConvertKernel<8, kEncodes>
                       : strided.width == 4 ? &Float8ConvertKernel<4, kEncodes>
                                            : &Float8ConvertKernel<1, kEncodes>;
  LaunchKernel("float8_convert", kernel, GeometryOfItems(strided.vectors),
               context, strided);
}

int64_t RoundedTo16(int64_t size) { return (size + 15) / 16 * 16; }
int64_t RoundedBytes(int64_t bytes) { return (bytes + 255) / 256 * 256; }

/// What is copied to the workspace because the library cannot read or write it
/// directly: it takes a and b contiguous along k, and k, n and rows of
/// multiples of 16. Padding is zeros.
struct Staging {
  explicit Staging(const ScaledMatMulArgs& args)
      : k(RoundedTo16(args.k)),
        n(RoundedTo16(args.n)),
        a(k != args.k || args.a.col_stride != 1 || args.a.row_stride < args.k ||
          args.a.row_stride % 16 != 0),
        b(k != args.k || n != args.n || args.b.row_stride != 1 ||
          args.b.col_stride < args.k || args.b.col_stride % 16 != 0),
        out(n != args.n || args.out.col_stride != 1 ||
            args.out.row_stride < args.n || args.out.row_stride % 16 != 0),
        scale_b(args.scales_by_row && n != args.n),
        a_at(RoundedBytes(kCudaGemmWorkspaceBytes)),
        b_at(a_at + (a ? RoundedBytes(args.m * k) : 0)),
        out_at(b_at + (b ? RoundedBytes(n * k) : 0)),
        scale_b_at(
            out_at +
            (out ? RoundedBytes(args.m * n * SizeOf(args.out_dtype)) : 0)),
        bytes(scale_b_at + (scale_b ? RoundedBytes(n * 4) : 0)) {}

  int64_t k;
  int64_t n;
  bool a;
  bool b;
  bool out;
  bool scale_b;
  int64_t a_at;
  int64_t b_at;
  int64_t out_at;
  int64_t scale_b_at;
  int64_t bytes;
};

/// Copies (rows, cols) to `to`, with rows of `leading` elements and padded to
/// `all_rows`.
void Stage(const void* from, DType dtype, int64_t row_stride,
           int64_t col_stride, int64_t rows, int64_t cols, void* to,
           int64_t leading, int64_t all_rows, KernelContext& context) {
  if (rows != all_rows || cols != leading) {
    CudaFill({{1, {all_rows * leading}}, {to, dtype, {1}}, 0}, context);
  }
  CudaCopy({{2, {rows, cols}},
            {from, dtype, {row_stride, col_stride}},
            {to, dtype, {leading, 1}}},
           context);
}

}  // namespace

void CudaFloat8Scale(const Float8ScaleArgs& args, KernelContext& context) {
  LaunchKernel("float8_scale", &Float8ScaleKernel, GeometryOfItems(args.count),
               context, args);
}

void CudaFloat8Convert(const Float8ConvertArgs& args, KernelContext& context) {
  const bool encodes = IsFloat8(args.out.dtype);
  const DType other = encodes ? args.in.dtype : args.out.dtype;
  CH_CHECK(encodes != IsFloat8(args.in.dtype) && IsFloatingPoint(other) &&
           SizeOf(other) <= 4)
      << "float8_convert kernel of " << Name(args.in.dtype) << " to "
      << Name(args.out.dtype);
  if (encodes) {
    Convert<true>(args, context);
  } else {
    Convert<false>(args, context);
  }
}

int64_t CudaScaledMatMulWorkspaceBytes(const ScaledMatMulArgs& args) {
  return Staging(args).bytes;
}

void CudaScaledMatMul(const ScaledMatMulArgs& args, KernelContext& context) {
  if (args.m * args.n == 0) return;
  if (args.k == 0) {
    CudaFill({{2, {args.m, args.n}},
              {args.out.data,
               args.out_dtype,
               {args.out.row_stride, args.out.col_stride}},
              0},
             context);
    return;
  }
  const Staging staging(args);
  auto* const workspace = static_cast<std::byte*>(args.workspace);
  CH_CHECK(workspace != nullptr) << "scaled_matmul kernel: no workspace";
  CudaGemmArgs gemm;
  gemm.m = args.m;
  gemm.n = staging.n;
  gemm.k = staging.k;
  gemm.dtype = args.a_dtype;
  gemm.b_dtype = args.b_dtype;
  gemm.out_dtype = args.out_dtype;
  gemm.a = {const_cast<void*>(args.a.data), args.a.row_stride};
  gemm.b = {const_cast<void*>(args.b.data), args.b.col_stride, true};
  gemm.out = {args.out.data, args.out.row_stride};
  gemm.scale_a = args.scale_a;
  gemm.scale_b = args.scale_b;
  gemm.scales_by_row = args.scales_by_row;
  gemm.workspace = workspace;
  gemm.workspace_bytes = kCudaGemmWorkspaceBytes;
  if (staging.a) {
    gemm.a = {workspace + staging.a_at, staging.k};
    Stage(args.a.data, args.a_dtype, args.a.row_stride, args.a.col_stride,
          args.m, args.k, gemm.a.data, staging.k, args.m, context);
  }
  if (staging.b) {
    gemm.b = {workspace + staging.b_at, staging.k, true};
    Stage(args.b.data, args.b_dtype, args.b.col_stride, args.b.row_stride,
          args.n, args.k, gemm.b.data, staging.k, staging.n, context);
  }
  if (staging.scale_b) {
    auto* const scale_b =
        reinterpret_cast<float*>(workspace + staging.scale_b_at);
    Stage(args.scale_b, DType::kFloat32, args.n, 1, 1, args.n, scale_b,
          staging.n, 1, context);
    gemm.scale_b = scale_b;
  }
  if (staging.out) gemm.out = {workspace + staging.out_at, staging.n};
  CH_CHECK(CudaGemm(gemm, context))
      << "cuBLASLt has no algorithm for a product of " << Name(args.a_dtype)
      << " and " << Name(args.b_dtype) << " to " << Name(args.out_dtype)
      << " (m, n, k) = (" << args.m << ", " << args.n << ", " << args.k
      << ") with scales by " << (args.scales_by_row ? "row" : "tensor")
      << ": float8 needs a device of compute capability 8.9, scales by row 9.0";
  if (staging.out) {
    CudaCopy({{2, {args.m, args.n}},
              {gemm.out.data, args.out_dtype, {staging.n, 1}},
              {args.out.data,
               args.out_dtype,
               {args.out.row_stride, args.out.col_stride}}},
             context);
  }
}

}  // namespace crosshatch::internal
