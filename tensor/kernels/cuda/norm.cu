// SPDX-License-Identifier: Apache-2.0
// Both norms. A block processes a piece of the rows, one after another, and
// keeps the weight and its part of the weight's gradient in registers. For rows
// that fit there (4,096 columns of float32, 8,192 of 16 bits) each operand is
// read once. The parts of the pieces are in the workspace until a second kernel
// adds them up.
#include <cmath>
#include <cstdint>

#include "crosshatch/tensor/kernels/cuda/block_reduce.cuh"
#include "crosshatch/tensor/kernels/cuda/entry_points.h"
#include "crosshatch/tensor/kernels/cuda/row.cuh"

namespace crosshatch::internal {
namespace {

constexpr int64_t kMostForwardPieces = 512;
constexpr int64_t kMostBackwardPieces = 256;
/// Minimum rows of a piece, so that moving the weight and the parts of its
/// gradient costs little in comparison.
constexpr int64_t kLeastRows = 16;
/// Vectors that a thread keeps of each row and of the per-column operands.
constexpr int kKept = 2;

/// One vector of a per-column operand, such as the weight; null: `otherwise`.
template <typename C, int N>
__device__ __forceinline__ void LoadColumns(const void* data, DType dtype,
                                            Columns columns, C otherwise,
                                            C (&values)[N]) {
  if (data != nullptr) {
    LoadVector(data, dtype, columns.col, 1, columns.count, values);
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) values[i] = otherwise;
  }
}

/// A statistic of consecutive rows of a piece, up to `end`. All threads of the
/// block have its value, and each stores one row's, so that stores are
/// combined.
template <typename C>
class RowStatistic {
 public:
  __device__ RowStatistic(void* data, DType dtype, int64_t end)
      : data_(data), dtype_(dtype), end_(end) {}

  __device__ __forceinline__ void Keep(int64_t row, C value) {
    if (threadIdx.x == count_) kept_ = value;
    ++count_;
    if (count_ < blockDim.x && row + 1 < end_) return;
    if (threadIdx.x < count_) {
      StoreElement(data_, dtype_, row + 1 - count_ + threadIdx.x, kept_);
    }
    count_ = 0;
  }

 private:
  void* const data_;
  const DType dtype_;
  const int64_t end_;
  C kept_ = C(0);
  unsigned count_ = 0;
};

/// A statistic of consecutive rows of a piece, up to `end`. A warp loads one
/// row per lane. All lanes request each row.
template <typename C>
class RowStatisticReader {
 public:
  __device__ RowStatisticReader(const void* data, DType dtype, int64_t first,
                                int64_t end)
      : data_(data), dtype_(dtype), begin_(first), next_(first), end_(end) {}

  __device__ __forceinline__ C At(int64_t row) {
    if (row == next_) {
      const int64_t mine = row + threadIdx.x % kWarpThreads;
      if (mine < end_) of_lane_ = LoadElement<C>(data_, dtype_, mine);
      begin_ = row;
      next_ = row + kWarpThreads;
    }
    return __shfl_sync(kFullWarp, of_lane_, static_cast<int>(row - begin_));
  }

 private:
  const void* const data_;
  const DType dtype_;
  /// The lanes have the values of rows begin_ to next_.
  int64_t begin_;
  int64_t next_;
  const int64_t end_;
  C of_lane_ = C(0);
};

/// The layout of a part in the workspace. N values of a thread need several
/// instructions if they exceed a vector of 16 bytes; the values that the
/// threads store by one of them are adjacent, so that they fill whole sectors.
template <typename C, int N>
struct PartLayout {
  static constexpr int kPack = N * sizeof(C) > 16
                                   ? static_cast<int>(16 / sizeof(C))
                                   : N;
  int64_t cols;

  /// If rows are whole vectors, each part begins at a vector.
  __device__ __forceinline__ bool HasVectors() const { return cols % N == 0; }
  __device__ __forceinline__ int64_t At(int64_t col) const {
    if (kPack == N || !HasVectors()) return col;
    return (col % N / kPack * (cols / N) + col / N) * kPack + col % kPack;
  }
  /// Returns the column whose sum is at `at`.
  __device__ __forceinline__ int64_t ColumnAt(int64_t at) const {
    if (kPack == N || !HasVectors()) return at;
    const int64_t pack = at / kPack;
    const int64_t vectors = cols / N;
    return pack % vectors * N + pack / vectors * kPack + at % kPack;
  }
  __device__ __forceinline__ void Store(C* part, Columns columns,
                                        const C (&values)[N]) const {
    if (!HasVectors()) {
      for (int i = 0; i < columns.count; ++i) {
        StoreGlobal(part + columns.col + i, values[i]);
      }
      return;
    }
#pragma unroll
    for (int i = 0; i < N; i += kPack) {
      Pack<C, kPack> pack;
#pragma unroll
      for (int j = 0; j < kPack; ++j) pack.values[j] = values[i + j];
      StoreGlobal(part + At(columns.col + i), pack);
    }
  }
};

/// Computes layer_norm or, without mean and bias, rms_norm.
template <typename C, int N, bool kCentered>
__global__ void __launch_bounds__(512)
    NormKernel(LayerNormArgs args, int64_t rows_per_piece) {
  using Values = C[1][N];
  const RowVectors<N, kKept> vectors = {args.cols};
  C weight[kKept][N];
  C bias[kKept][N];
  vectors.ForKept([&](int k, Columns columns) {
    LoadColumns(args.weight, args.dtype, columns, C(1), weight[k]);
    if (kCentered) {
      LoadColumns(args.bias, args.dtype, columns, C(0), bias[k]);
    }
  });
  const int64_t first = blockIdx.x * rows_per_piece;
  const int64_t end =
      first + rows_per_piece < args.rows ? first + rows_per_piece : args.rows;
  const DType statistics = StatisticsDType(args.dtype);
  RowStatistic<C> means(args.mean, statistics, end);
  RowStatistic<C> rstds(args.rstd, statistics, end);
  for (int64_t r = first; r < end; ++r) {
    CachedRows<C, N, kKept, 1> x({{args.x.data, r * args.x.row_stride}},
                                 args.dtype, args.cols);
    const C cols = static_cast<C>(args.cols);
    RunningSum<C> sums;
    x.First([&](const Values& values, Columns columns) {
      for (int i = 0; i < columns.count; ++i) {
        const C value = values[0][i];
        sums.Add(kCentered ? value : value * value);
      }
    });
    C mean = C(0);
    C squares = BlockSum(sums.Sum());
    if (kCentered) {
      mean = squares / cols;
      RunningSum<C> of_squares;
      x.Again([&](const Values& values, Columns columns) {
        for (int i = 0; i < columns.count; ++i) {
          const C off = values[0][i] - mean;
          of_squares.Add(off * off);
        }
      });
      squares = BlockSum(of_squares.Sum());
    }
    const C rstd = C(1) / std::sqrt(squares / cols + static_cast<C>(args.eps));
    const auto store = [&](const Values& values, const C(&w)[N], const C(&b)[N],
                           Columns columns) {
      C out[N];
#pragma unroll
      for (int i = 0; i < N; ++i) {
        out[i] = (values[0][i] - mean) * rstd * w[i];
        if (kCentered) out[i] += b[i];
      }
      StoreVector<false>(args.out.data, args.dtype,
                         r * args.out.row_stride + columns.col, columns.count,
                         out);
    };
    x.AgainKept([&](int k, const Values& values, Columns columns) {
      store(values, weight[k], bias[k], columns);
    });
    x.AgainOthers([&](const Values& values, Columns columns) {
      C w[N];
      C b[N];
      LoadColumns(args.weight, args.dtype, columns, C(1), w);
      LoadColumns(args.bias, args.dtype, columns, C(0), b);
      store(values, w, b, columns);
    });
    if (kCentered) means.Keep(r, mean);
    rstds.Keep(r, rstd);
  }
}

/// Backward of layer_norm or, without mean, of rms_norm. parts:
/// [2][pieces][cols] in C, those of the weight's gradient and of the bias',
/// each in PartLayout<C, N>; null if not needed.
template <typename C, int N, bool kCentered>
__global__ void __launch_bounds__(512)
    NormBackwardKernel(LayerNormBackwardArgs args, int64_t rows_per_piece,
                       C* parts) {
  using Values = C[2][N];  // The gradient and x.
  const DType statistics = StatisticsDType(args.dtype);
  const RowVectors<N, kKept> vectors = {args.cols};
  C weight[kKept][N];
  C dweight[kKept][N] = {};
  C dbias[kKept][N] = {};
  vectors.ForKept([&](int k, Columns columns) {
    LoadColumns(args.weight, args.dtype, columns, C(1), weight[k]);
  });
  C* const part = parts == nullptr ? nullptr : parts + blockIdx.x * args.cols;
  C* const bias_part =
      parts == nullptr ? nullptr : part + int64_t{gridDim.x} * args.cols;
  const PartLayout<C, N> layout = {args.cols};
  // Columns beyond the kept ones are added up in memory.
  if (parts != nullptr) {
    const C zeros[N] = {};
    vectors.ForOthers([&](Columns columns) {
      layout.Store(part, columns, zeros);
      if (kCentered) layout.Store(bias_part, columns, zeros);
    });
  }
  const int64_t first = blockIdx.x * rows_per_piece;
  const int64_t end =
      first + rows_per_piece < args.rows ? first + rows_per_piece : args.rows;
  RowStatisticReader<C> means(args.mean, statistics, first, end);
  RowStatisticReader<C> rstds(args.rstd, statistics, first, end);
  for (int64_t r = first; r < end; ++r) {
    CachedRows<C, N, kKept, 2> rows({{args.grad.data, r * args.grad.row_stride},
                                     {args.x.data, r * args.x.row_stride}},
                                    args.dtype, args.cols);
    const C mean = kCentered ? means.At(r) : C(0);
    const C rstd = rstds.At(r);
    RunningSum<C> shifts;
    RunningSum<C> slopes;
    const auto add = [&](const Values& values, const C(&w)[N],
                         Columns columns) {
      for (int i = 0; i < columns.count; ++i) {
        const C g = values[0][i] * w[i];
        if (kCentered) shifts.Add(g);
        slopes.Add(g * ((values[1][i] - mean) * rstd));
      }
    };
    rows.FirstKept([&](int k, const Values& values, Columns columns) {
      add(values, weight[k], columns);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        dweight[k][i] += values[0][i] * ((values[1][i] - mean) * rstd);
        if (kCentered) dbias[k][i] += values[0][i];
      }
    });
    rows.AgainOthers([&](const Values& values, Columns columns) {
      C w[N];
      LoadColumns(args.weight, args.dtype, columns, C(1), w);
      add(values, w, columns);
      if (parts == nullptr) return;
      for (int i = 0; i < columns.count; ++i) {
        const int64_t at = layout.At(columns.col + i);
        C* const to = part + at;
        const C xhat = (values[1][i] - mean) * rstd;
        StoreGlobal(to, LoadGlobal<C>(to) + values[0][i] * xhat);
        if (kCentered) {
          C* const bias_to = bias_part + at;
          StoreGlobal(bias_to, LoadGlobal<C>(bias_to) + values[0][i]);
        }
      }
    });
    if (!args.want_dx) continue;
    const C cols = static_cast<C>(args.cols);
    const C shift = kCentered ? BlockSum(shifts.Sum()) / cols : C(0);
    const C slope = BlockSum(slopes.Sum()) / cols;
    const auto store = [&](const Values& values, const C(&w)[N],
                           Columns columns) {
      C dx[N];
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const C xhat = (values[1][i] - mean) * rstd;
        dx[i] = rstd * (values[0][i] * w[i] - shift - xhat * slope);
      }
      StoreVector<false>(args.dx.data, args.dtype,
                         r * args.dx.row_stride + columns.col, columns.count,
                         dx);
    };
    rows.AgainKept([&](int k, const Values& values, Columns columns) {
      store(values, weight[k], columns);
    });
    rows.AgainOthers([&](const Values& values, Columns columns) {
      C w[N];
      LoadColumns(args.weight, args.dtype, columns, C(1), w);
      store(values, w, columns);
    });
  }
  if (parts == nullptr) return;
  vectors.ForKept([&](int k, Columns columns) {
    layout.Store(part, columns, dweight[k]);
    if (kCentered) layout.Store(bias_part, columns, dbias[k]);
  });
}

/// Writes or adds the sum of the pieces' parts of column c to out[c].
template <typename C, int N>
__global__ void __launch_bounds__(256)
    SumPartsKernel(const C* parts, int64_t pieces, int64_t cols, void* out,
                   DType dtype, WriteMode mode) {
  const PartLayout<C, N> layout = {cols};
  for (int64_t at = GlobalThread(); at < cols; at += GlobalThreads()) {
    RunningSum<C> sum;
    for (int64_t p = 0; p < pieces; ++p) {
      sum.Add(LoadGlobal<C>(parts + p * cols + at));
    }
    const int64_t c = layout.ColumnAt(at);
    C value = sum.Sum();
    if (mode == WriteMode::kAccumulate) {
      value += LoadElement<C>(out, dtype, c);
    }
    StoreElement(out, dtype, c, value);
  }
}

template <bool kCentered>
void Norm(const char* name, const LayerNormArgs& args, KernelContext& context) {
  const RowPieces pieces =
      PiecesOfRows(args.rows, kMostForwardPieces, kLeastRows);
  const bool vectors = HasVectors(args.x, args.dtype) &&
                       HasVectors(args.out, args.dtype) &&
                       HasVectors(RowsInput{args.weight, 0}, args.dtype) &&
                       HasVectors(RowsInput{args.bias, 0}, args.dtype);
  DispatchRows(args.dtype, vectors, [&](auto zero, auto width) {
    LaunchKernel(name,
                 &NormKernel<decltype(zero), decltype(width)::value, kCentered>,
                 GeometryOfVectors(pieces.pieces, args.cols, width, kKept),
                 context, args, pieces.rows_per_piece);
  });
}

int64_t WorkspaceBytes(int64_t rows, int64_t cols, DType dtype, int sums) {
  return PiecesOfRows(rows, kMostBackwardPieces, kLeastRows).pieces * cols *
         sums * SizeOf(StatisticsDType(dtype));
}

template <bool kCentered>
void NormBackward(const char* name, const LayerNormBackwardArgs& args,
                  KernelContext& context) {
  const RowPieces pieces =
      PiecesOfRows(args.rows, kMostBackwardPieces, kLeastRows);
  const bool vectors = HasVectors(args.grad, args.dtype) &&
                       HasVectors(args.x, args.dtype) &&
                       (!args.want_dx || HasVectors(args.dx, args.dtype)) &&
                       HasVectors(RowsInput{args.weight, 0}, args.dtype);
  DispatchRows(args.dtype, vectors, [&](auto zero, auto width) {
    using C = decltype(zero);
    constexpr int kWidth = decltype(width)::value;
    auto* const parts = args.want_dweight || args.want_dbias
                            ? static_cast<C*>(args.workspace)
                            : nullptr;
    LaunchKernel(name, &NormBackwardKernel<C, kWidth, kCentered>,
                 GeometryOfVectors(pieces.pieces, args.cols, width, kKept),
                 context, args, pieces.rows_per_piece, parts);
    const LaunchGeometry of_cols = GeometryOfItems(args.cols);
    if (args.want_dweight) {
      LaunchKernel("norm_dweight", &SumPartsKernel<C, kWidth>, of_cols, context,
                   static_cast<const C*>(parts), pieces.pieces, args.cols,
                   args.dweight, args.dweight_dtype, args.dweight_mode);
    }
    if (args.want_dbias) {
      LaunchKernel("norm_dbias", &SumPartsKernel<C, kWidth>, of_cols, context,
                   static_cast<const C*>(parts) + pieces.pieces * args.cols,
                   pieces.pieces, args.cols, args.dbias, args.dweight_dtype,
                   args.dbias_mode);
    }
  });
}

}  // namespace

void CudaRmsNorm(const RmsNormArgs& args, KernelContext& context) {
  LayerNormArgs all;
  all.rows = args.rows;
  all.cols = args.cols;
  all.x = args.x;
  all.weight = args.weight;
  all.out = args.out;
  all.rstd = args.rstd;
  all.dtype = args.dtype;
  all.eps = args.eps;
  Norm<false>("rms_norm", all, context);
}

void CudaLayerNorm(const LayerNormArgs& args, KernelContext& context) {
  Norm<true>("layer_norm", args, context);
}

int64_t CudaRmsNormBackwardWorkspaceBytes(const RmsNormBackwardArgs& args) {
  return args.want_dweight ? WorkspaceBytes(args.rows, args.cols, args.dtype, 1)
                           : 0;
}

void CudaRmsNormBackward(const RmsNormBackwardArgs& args,
                         KernelContext& context) {
  LayerNormBackwardArgs all;
  all.rows = args.rows;
  all.cols = args.cols;
  all.grad = args.grad;
  all.x = args.x;
  all.weight = args.weight;
  all.rstd = args.rstd;
  all.dx = args.dx;
  all.dweight = args.dweight;
  all.dtype = args.dtype;
  all.dweight_dtype = args.dweight_dtype;
  all.dweight_mode = args.dweight_mode;
  all.want_dx = args.want_dx;
  all.want_dweight = args.want_dweight;
  all.want_dbias = false;
  all.workspace = args.workspace;
  NormBackward<false>("rms_norm_backward", all, context);
}

int64_t CudaLayerNormBackwardWorkspaceBytes(const LayerNormBackwardArgs& args) {
  return args.want_dweight || args.want_dbias
             ? WorkspaceBytes(args.rows, args.cols, args.dtype, 2)
             : 0;
}

void CudaLayerNormBackward(const LayerNormBackwardArgs& args,
                           KernelContext& context) {
  NormBackward<true>("layer_norm_backward", args, context);
}

}  // namespace crosshatch::internal
