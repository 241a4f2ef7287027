// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/kernels/cuda/elementwise.cuh"
#include "crosshatch/tensor/kernels/cuda/entry_points.h"

namespace crosshatch::internal {
namespace {

template <typename C>
struct Identity {
  template <int N>
  __device__ void operator()(const C (&in)[1][N], C (&out)[1][N]) const {
#pragma unroll
    for (int i = 0; i < N; ++i) out[0][i] = in[0][i];
  }
};

template <typename To, typename From>
__device__ __forceinline__ To Converted(From value) {
  if constexpr (std::is_integral_v<To> && !std::is_integral_v<From>) {
    return Saturated<To>(value);
  } else {
    return static_cast<To>(value);
  }
}

/// Converts what was read, computed in From, to the type that the output is
/// computed in, To, and adds the old output.
template <typename From, typename To>
__global__ void __launch_bounds__(256) AddConvertedKernel(Strided<2> strided) {
  for (int64_t v = GlobalThread(); v < strided.vectors; v += GlobalThreads()) {
    int64_t offsets[2];
    strided.Locate(v, offsets);
    const From value =
        LoadElement<From>(strided.data[0], strided.dtypes[0], offsets[0]);
    const To old =
        LoadElement<To>(strided.data[1], strided.dtypes[1], offsets[1]);
    StoreElement<To>(strided.data[1], strided.dtypes[1], offsets[1],
                     Plus(old, Converted<To>(value)));
  }
}

template <typename C>
struct Fill {
  C value;
  template <int N>
  __device__ void operator()(const C (&)[1][N], C (&out)[1][N]) const {
#pragma unroll
    for (int i = 0; i < N; ++i) out[0][i] = value;
  }
};

__global__ void __launch_bounds__(256)
    ArangeKernel(void* out, DType dtype, int64_t count, double start,
                 double step) {
  for (int64_t i = GlobalThread(); i < count; i += GlobalThreads()) {
    const double value[1] = {start + static_cast<double>(i) * step};
    StoreElements<true>(out, dtype, i, value);
  }
}

/// Returns the byte that an element of `dtype`, converted from `value`,
/// repeats; -1 if its bytes differ or the value is rare.
int RepeatedByte(double value, DType dtype) {
  if (dtype == DType::kBool) return value != 0 ? 1 : 0;
  if (value == 0) {
    return IsFloatingPoint(dtype) && std::signbit(value) ? -1 : 0;
  }
  const bool is_signed = dtype == DType::kInt32 || dtype == DType::kInt64;
  return value == -1 && is_signed ? 0xFF : -1;
}

/// Fills by the runtime's own function for bytes.
/// \returns false if elements are not adjacent, or their bytes differ
bool FillBytes(const FillArgs& args, KernelContext& context) {
  const int byte = RepeatedByte(args.value, args.out.dtype);
  const StridedLoop loop =
      StridedLoop::Make(args.shape, {args.out.strides}, /*order_by=*/0);
  if (byte < 0 || loop.ndim > 1 || loop.inner_stride(0) != 1) return false;
  const int64_t bytes = loop.total() * SizeOf(args.out.dtype);
  if (bytes == 0) return true;
  CheckCuda(cudaMemsetAsync(args.out.data, byte, static_cast<size_t>(bytes),
                            StreamOf(context)),
            "cudaMemsetAsync");
  return true;
}

constexpr int kTile = 32;
constexpr int kTileRows = 8;

/// Copies tile by tile if source and output are contiguous in different dims,
/// so that both are accessed along their contiguous dims. `strided` has two
/// dims: the output's inner one, in which the source has a stride above 1, and
/// the previous one, in which the source is contiguous.
template <typename C>
__global__ void __launch_bounds__(kTile* kTileRows)
    TransposeKernel(Strided<2> strided) {
  CH_SHARED(tile, C[kTile][kTile + 1]);
  const StridedLoop& loop = strided.loop;
  const int cols_dim = loop.ndim - 1;
  const int rows_dim = loop.ndim - 2;
  const int64_t cols = loop.sizes[cols_dim];
  const int64_t rows = loop.sizes[rows_dim];
  const int64_t col_tiles = (cols + kTile - 1) / kTile;
  const int64_t row_tiles = (rows + kTile - 1) / kTile;
  int64_t tiles = col_tiles * row_tiles;
  for (int d = 0; d < rows_dim; ++d) tiles *= loop.sizes[d];
  const auto x = static_cast<int>(threadIdx.x);
  const auto y = static_cast<int>(threadIdx.y);
  for (int64_t t = blockIdx.x; t < tiles; t += gridDim.x) {
    const int64_t col = t % col_tiles * kTile;
    const int64_t row = t / col_tiles % row_tiles * kTile;
    int64_t outer = t / col_tiles / row_tiles;
    int64_t from = 0;
    int64_t to = 0;
    for (int d = rows_dim - 1; d >= 0; --d) {
      from += outer % loop.sizes[d] * loop.strides[0][d];
      to += outer % loop.sizes[d] * loop.strides[1][d];
      outer /= loop.sizes[d];
    }
    for (int i = y; i < kTile; i += kTileRows) {
      if (col + i < cols && row + x < rows) {
        tile[i][x] =
            LoadElement<C>(strided.data[0], strided.dtypes[0],
                           from + (col + i) * loop.strides[0][cols_dim] +
                               (row + x) * loop.strides[0][rows_dim]);
      }
    }
    __syncthreads();
    for (int i = y; i < kTile; i += kTileRows) {
      if (row + i < rows && col + x < cols) {
        const C value[1] = {tile[x][i]};
        StoreElements<true>(strided.data[1], strided.dtypes[1],
                            to + (row + i) * loop.strides[1][rows_dim] +
                                (col + x) * loop.strides[1][cols_dim],
                            value);
      }
    }
    __syncthreads();
  }
}

/// Makes the dim in which the source is contiguous the second-last.
/// \returns whether TransposeKernel applies.
bool AsTranspose(Strided<2>& strided) {
  StridedLoop& loop = strided.loop;
  const int last = loop.ndim - 1;
  if (last < 1 || loop.strides[1][last] != 1 || loop.strides[0][last] == 1 ||
      loop.strides[0][last] == 0) {
    return false;
  }
  for (int d = 0; d < last; ++d) {
    if (loop.strides[0][d] != 1) continue;
    // Tiles that are mostly empty cost more than they save.
    if (loop.sizes[d] < kTile / 4 || loop.sizes[last] < kTile / 4) return false;
    for (int e = d; e + 1 < last; ++e) {
      std::swap(loop.sizes[e], loop.sizes[e + 1]);
      std::swap(loop.strides[0][e], loop.strides[0][e + 1]);
      std::swap(loop.strides[1][e], loop.strides[1][e + 1]);
    }
    return true;
  }
  return false;
}

LaunchGeometry GeometryOfTiles(const StridedLoop& loop) {
  int64_t tiles = 1;
  for (int d = 0; d < loop.ndim; ++d) {
    const bool in_tile = d >= loop.ndim - 2;
    tiles *= in_tile ? (loop.sizes[d] + kTile - 1) / kTile : loop.sizes[d];
  }
  LaunchGeometry geometry;
  geometry.blocks = GeometryOfRows(tiles, kTile).blocks;
  geometry.threads = kTile;
  geometry.threads_y = kTileRows;
  return geometry;
}

/// Calls f(C()) with the compute type of a source of `dtype`.
template <typename F>
void DispatchSource(DType dtype, F&& f) {
  CH_CHECK(!IsStorageOnly(dtype)) << "copy kernel: converts " << Name(dtype);
  if (!IsFloatingPoint(dtype)) return f(int64_t{});
  if (dtype == DType::kFloat64) return f(double{});
  return f(float{});
}

void AddConverted(const CopyArgs& args, KernelContext& context) {
  CH_CHECK(args.out.dtype != DType::kBool) << "copy kernel: += of bool";
  const auto strided =
      MakeStrided(args.shape, {AsOperand(args.src), AsOperand(args.out)}, 1);
  DispatchSource(args.src.dtype, [&](auto from) {
    DispatchSource(args.out.dtype, [&](auto to) {
      using From = decltype(from);
      using To = decltype(to);
      // Otherwise CudaCopy adds by the elementwise kernel.
      if constexpr (!std::is_same_v<From, To>) {
        LaunchKernel("copy_add", &AddConvertedKernel<From, To>,
                     GeometryOfItems(strided.vectors), context, strided);
      }
    });
  });
}

}  // namespace

void CudaCopy(const CopyArgs& args, KernelContext& context) {
  if (args.mode == WriteMode::kAccumulate) {
    // With one compute type the sum is vectorized.
    const auto same = [&](DType a, DType b) {
      return IsFloatingPoint(a) == IsFloatingPoint(b) &&
             (a == DType::kFloat64) == (b == DType::kFloat64);
    };
    if (!same(args.src.dtype, args.out.dtype)) {
      return AddConverted(args, context);
    }
    return DispatchSource(args.src.dtype, [&](auto zero) {
      using C = decltype(zero);
      Elementwise<C, 1, 1>("copy", Identity<C>{}, args.shape,
                           {AsOperand(args.src), AsOperand(args.out)}, context,
                           {args.mode});
    });
  }
  const auto copy = [&](auto zero) {
    using C = decltype(zero);
    auto strided =
        MakeStrided(args.shape, {AsOperand(args.src), AsOperand(args.out)}, 1);
    if (strided.vectors > 0 && AsTranspose(strided)) {
      LaunchKernel("transpose", &TransposeKernel<C>,
                   GeometryOfTiles(strided.loop), context, strided);
      return;
    }
    Elementwise<C, 1, 1, /*kAny=*/true>(
        "copy", Identity<C>{}, args.shape,
        {AsOperand(args.src), AsOperand(args.out)}, context);
  };
  if (IsStorageOnly(args.src.dtype) && args.src.dtype == args.out.dtype) {
    return copy(ByteBits{});
  }
  CH_CHECK(!IsStorageOnly(args.out.dtype))
      << "copy kernel: converts " << Name(args.src.dtype) << " to "
      << Name(args.out.dtype);
  DispatchSource(args.src.dtype, copy);
}

void CudaFill(const FillArgs& args, KernelContext& context) {
  if (FillBytes(args, context)) return;
  if (IsStorageOnly(args.out.dtype)) {
    CH_CHECK_EQ(args.value, 0) << "fill kernel of " << Name(args.out.dtype);
    return Elementwise<ByteBits, 0, 1>("fill", Fill<ByteBits>{0}, args.shape,
                                       {AsOperand(args.out)}, context);
  }
  Elementwise<double, 0, 1, /*kAny=*/true>("fill", Fill<double>{args.value},
                                           args.shape, {AsOperand(args.out)},
                                           context);
}

void CudaArange(const ArangeArgs& args, KernelContext& context) {
  LaunchKernel("arange", &ArangeKernel, GeometryOfItems(args.count), context,
               args.out, args.dtype, args.count, args.start, args.step);
}

void CudaFromHost(const TransferArgs& args, KernelContext& context) {
  CheckCuda(cudaMemcpyAsync(args.to, args.from, static_cast<size_t>(args.bytes),
                            cudaMemcpyHostToDevice, StreamOf(context)),
            "cudaMemcpyAsync to the device");
}

void CudaToHost(const TransferArgs& args, KernelContext& context) {
  CheckCuda(cudaMemcpyAsync(args.to, args.from, static_cast<size_t>(args.bytes),
                            cudaMemcpyDeviceToHost, StreamOf(context)),
            "cudaMemcpyAsync from the device");
}

}  // namespace crosshatch::internal
