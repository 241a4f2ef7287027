// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/kernels/cpu/targets.h"
// Before the headers that are compiled once for each target.
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "crosshatch/tensor/kernels/cpu/entry_points.h"
#include "crosshatch/tensor/kernels/cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/kernels/cpu/norm.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "crosshatch/tensor/kernels/cpu/row-inl.h"
#include "hwy/highway.h"

#ifndef CROSSHATCH_TENSOR_KERNELS_CPU_NORM_ONCE_
#define CROSSHATCH_TENSOR_KERNELS_CPU_NORM_ONCE_
namespace crosshatch::internal {
namespace {

/// Rows whose contributions to a column's gradient are summed by one thread.
constexpr int64_t kNormChunk = 256;

int64_t NormChunks(int64_t rows) {
  return (rows + kNormChunk - 1) / kNormChunk;
}

}  // namespace
}  // namespace crosshatch::internal
#endif  // CROSSHATCH_TENSOR_KERNELS_CPU_NORM_ONCE_

HWY_BEFORE_NAMESPACE();
namespace crosshatch {
namespace HWY_NAMESPACE {
namespace {

/// A norm of either kind: with a mean (and a bias) or without.
struct NormForward {
  int64_t rows;
  int64_t cols;
  RowsInput x;
  const void* weight;
  const void* bias;
  RowsOutput out;
  void* mean;  ///< Null: not centered.
  void* rstd;
  DType dtype;
  double eps;
};

/// The elements of a per-column vector, or `fill` if it is absent.
template <typename T>
class ColumnVector {
 public:
  ColumnVector(const void* data, DType dtype, T fill)
      : data_(data), dtype_(dtype) {
    if (data == nullptr) std::fill(buffer_, buffer_ + kReduceRun, fill);
  }
  const T* Piece(int64_t start, int64_t count) {
    if (data_ == nullptr) return buffer_;
    return Staged(internal::ElementAt(data_, dtype_, start), dtype_, count,
                  buffer_);
  }

 private:
  const void* const data_;
  const DType dtype_;
  HWY_ALIGN T buffer_[kReduceRun];
};

template <typename T>
void Normalize(const NormForward& args, KernelContext& context) {
  const T n = static_cast<T>(std::max<int64_t>(args.cols, 1));
  internal::ForRanges(
      context, args.rows, args.cols, [&](int64_t begin, int64_t end) HWY_ATTR {
        ColumnVector<T> weight(args.weight, args.dtype, T(1));
        ColumnVector<T> bias(args.bias, args.dtype, T(0));
        HWY_ALIGN T centered[kReduceRun];
        for (int64_t r = begin; r < end; ++r) {
          RowReader<T> x(args.x, args.dtype, r);
          RowWriter<T> out(args.out, args.dtype, r);
          T mean = 0;
          T squares;
          if (args.mean != nullptr) {
            mean = ReduceRow(kReduction<SumOp, T>, x, args.cols) / n;
            static_cast<T*>(args.mean)[r] = mean;
            PairwiseStack<T> stack(kReduction<SumOfSquaresOp, T>);
            ForPieces(args.cols, [&](int64_t start, int64_t count) HWY_ATTR {
              const T* from = x.Piece(start, count);
              for (int64_t i = 0; i < count; ++i) centered[i] = from[i] - mean;
              stack.Push(ReduceRun<SumOfSquaresOp>(centered, count));
            });
            squares = stack.Total();
          } else {
            squares = ReduceRow(kReduction<SumOfSquaresOp, T>, x, args.cols);
          }
          const T rstd =
              T(1) / std::sqrt(squares / n + static_cast<T>(args.eps));
          static_cast<T*>(args.rstd)[r] = rstd;
          ForPieces(args.cols, [&](int64_t start, int64_t count) HWY_ATTR {
            const T* from = x.Piece(start, count);
            const T* w = weight.Piece(start, count);
            T* to = out.Begin(start);
            if (args.mean != nullptr) {
              const T* b = bias.Piece(start, count);
              for (int64_t i = 0; i < count; ++i) {
                to[i] = (from[i] - mean) * rstd * w[i] + b[i];
              }
            } else {
              for (int64_t i = 0; i < count; ++i) to[i] = from[i] * rstd * w[i];
            }
            out.End(start, count);
          });
        }
      });
}

void RmsNorm(const RmsNormArgs& args, KernelContext& context) {
  internal::DispatchFloat(args.dtype, "rms_norm", [&](auto zero) HWY_ATTR {
    Normalize<decltype(zero)>(
        {args.rows, args.cols, args.x, args.weight, nullptr, args.out, nullptr,
         args.rstd, args.dtype, args.eps},
        context);
  });
}

void LayerNorm(const LayerNormArgs& args, KernelContext& context) {
  internal::DispatchFloat(args.dtype, "layer_norm", [&](auto zero) HWY_ATTR {
    Normalize<decltype(zero)>(
        {args.rows, args.cols, args.x, args.weight, args.bias, args.out,
         args.mean, args.rstd, args.dtype, args.eps},
        context);
  });
}

struct NormBackward {
  int64_t rows;
  int64_t cols;
  RowsInput grad;
  RowsInput x;
  const void* weight;
  const void* mean;  ///< Null: not centered.
  const void* rstd;
  DType dtype;
};

/// Computes dx = rstd * (g - mean(g) - xhat * mean(g * xhat)) with g = grad *
/// weight and xhat = (x - mean) * rstd. Without centering, mean(g) is omitted.
template <typename T>
void InputGradient(const NormBackward& args, const RowsOutput& dx_rows,
                   KernelContext& context) {
  const T n = static_cast<T>(std::max<int64_t>(args.cols, 1));
  internal::ForRanges(
      context, args.rows, args.cols * 2,
      [&](int64_t begin, int64_t end) HWY_ATTR {
        ColumnVector<T> weight(args.weight, args.dtype, T(1));
        HWY_ALIGN T weighted[kReduceRun];
        HWY_ALIGN T products[kReduceRun];
        for (int64_t r = begin; r < end; ++r) {
          RowReader<T> x(args.x, args.dtype, r);
          RowReader<T> grad(args.grad, args.dtype, r);
          RowWriter<T> dx(dx_rows, args.dtype, r);
          const T rstd = static_cast<const T*>(args.rstd)[r];
          const T mean =
              args.mean != nullptr ? static_cast<const T*>(args.mean)[r] : T(0);
          PairwiseStack<T> sum(kReduction<SumOp, T>);
          PairwiseStack<T> product(kReduction<SumOp, T>);
          ForPieces(args.cols, [&](int64_t start, int64_t count) HWY_ATTR {
            const T* from = x.Piece(start, count);
            const T* g = grad.Piece(start, count);
            const T* w = weight.Piece(start, count);
            for (int64_t i = 0; i < count; ++i) {
              weighted[i] = g[i] * w[i];
              products[i] = weighted[i] * ((from[i] - mean) * rstd);
            }
            if (args.mean != nullptr) {
              sum.Push(ReduceRun<SumOp>(weighted, count));
            }
            product.Push(ReduceRun<SumOp>(products, count));
          });
          const T shift = sum.Total() / n;
          const T slope = product.Total() / n;
          ForPieces(args.cols, [&](int64_t start, int64_t count) HWY_ATTR {
            const T* from = x.Piece(start, count);
            const T* g = grad.Piece(start, count);
            const T* w = weight.Piece(start, count);
            T* to = dx.Begin(start);
            for (int64_t i = 0; i < count; ++i) {
              const T xhat = (from[i] - mean) * rstd;
              to[i] = rstd * (g[i] * w[i] - shift - xhat * slope);
            }
            dx.End(start, count);
          });
        }
      });
}

/// Computes out[c] = the sum over rows of grad[r, c], times xhat[r, c] if
/// `with_xhat`. Sums chunks of rows into the workspace, then adds the chunks.
template <typename T>
void ColumnGradient(const NormBackward& args, bool with_xhat, void* out,
                    DType out_dtype, WriteMode mode, T* workspace,
                    KernelContext& context) {
  constexpr int64_t kColumns = ColumnStack<T>::kColumns;
  const int64_t chunks = internal::NormChunks(args.rows);
  const int64_t tiles = (args.cols + kColumns - 1) / kColumns;
  internal::ForRanges(
      context, chunks * tiles, internal::kNormChunk * kColumns,
      [&](int64_t begin, int64_t end) HWY_ATTR {
        ColumnStack<T> stack(kReduction<SumOp, T>);
        HWY_ALIGN T x_buffer[kColumns];
        HWY_ALIGN T grad_buffer[kColumns];
        HWY_ALIGN T products[kColumns];
        for (int64_t unit = begin; unit < end; ++unit) {
          const int64_t chunk = unit / tiles;
          const int64_t start = unit % tiles * kColumns;
          const int64_t count = std::min(kColumns, args.cols - start);
          const int64_t last =
              std::min(args.rows, (chunk + 1) * internal::kNormChunk);
          stack.Clear();
          for (int64_t r = chunk * internal::kNormChunk; r < last; ++r) {
            const T* g =
                Staged(internal::ElementAt(args.grad.data, args.dtype,
                                           r * args.grad.row_stride + start),
                       args.dtype, count, grad_buffer);
            if (with_xhat) {
              const T* x =
                  Staged(internal::ElementAt(args.x.data, args.dtype,
                                             r * args.x.row_stride + start),
                         args.dtype, count, x_buffer);
              const T rstd = static_cast<const T*>(args.rstd)[r];
              const T mean = args.mean != nullptr
                                 ? static_cast<const T*>(args.mean)[r]
                                 : T(0);
              for (int64_t i = 0; i < count; ++i) {
                products[i] = g[i] * ((x[i] - mean) * rstd);
              }
              g = products;
            }
            stack.Push(g, count);
          }
          const T* total = stack.Total(count);
          std::copy(total, total + count,
                    workspace + chunk * args.cols + start);
        }
      });
  internal::ForRanges(
      context, tiles, chunks * kColumns,
      [&](int64_t begin, int64_t end) HWY_ATTR {
        ColumnStack<T> stack(kReduction<SumOp, T>);
        HWY_ALIGN T sum[kColumns];
        for (int64_t tile = begin; tile < end; ++tile) {
          const int64_t start = tile * kColumns;
          const int64_t count = std::min(kColumns, args.cols - start);
          stack.Clear();
          for (int64_t chunk = 0; chunk < chunks; ++chunk) {
            stack.Push(workspace + chunk * args.cols + start, count);
          }
          const T* total = stack.Total(count);
          void* to = internal::ElementAt(out, out_dtype, start);
          std::fill(sum, sum + count, T(0));
          if (mode == WriteMode::kAccumulate) {
            LoadRun(to, out_dtype, 1, count, sum);
          }
          for (int64_t i = 0; i < count; ++i) sum[i] += total[i];
          StoreRun(sum, to, out_dtype, 1, count);
        }
      });
}

template <typename T>
void RmsNormBackwardAs(const RmsNormBackwardArgs& args,
                       KernelContext& context) {
  const NormBackward norm = {args.rows,   args.cols, args.grad, args.x,
                             args.weight, nullptr,   args.rstd, args.dtype};
  if (args.want_dx) InputGradient<T>(norm, args.dx, context);
  if (args.want_dweight) {
    ColumnGradient<T>(norm, true, args.dweight, args.dweight_dtype,
                      args.dweight_mode, static_cast<T*>(args.workspace),
                      context);
  }
}

void RmsNormBackward(const RmsNormBackwardArgs& args, KernelContext& context) {
  internal::DispatchFloat(args.dtype, "rms_norm_backward",
                          [&](auto zero) HWY_ATTR {
                            RmsNormBackwardAs<decltype(zero)>(args, context);
                          });
}

template <typename T>
void LayerNormBackwardAs(const LayerNormBackwardArgs& args,
                         KernelContext& context) {
  const NormBackward norm = {args.rows,   args.cols, args.grad, args.x,
                             args.weight, args.mean, args.rstd, args.dtype};
  T* const workspace = static_cast<T*>(args.workspace);
  if (args.want_dx) InputGradient<T>(norm, args.dx, context);
  if (args.want_dweight) {
    ColumnGradient<T>(norm, true, args.dweight, args.dweight_dtype,
                      args.dweight_mode, workspace, context);
  }
  if (args.want_dbias) {
    ColumnGradient<T>(norm, false, args.dbias, args.dweight_dtype,
                      args.dbias_mode, workspace, context);
  }
}

void LayerNormBackward(const LayerNormBackwardArgs& args,
                       KernelContext& context) {
  internal::DispatchFloat(args.dtype, "layer_norm_backward",
                          [&](auto zero) HWY_ATTR {
                            LayerNormBackwardAs<decltype(zero)>(args, context);
                          });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace crosshatch
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace crosshatch {

HWY_EXPORT(RmsNorm);
HWY_EXPORT(RmsNormBackward);
HWY_EXPORT(LayerNorm);
HWY_EXPORT(LayerNormBackward);

namespace internal {

int64_t CpuRmsNormBackwardWorkspaceBytes(const RmsNormBackwardArgs& args) {
  if (!args.want_dweight) return 0;
  return NormChunks(args.rows) * args.cols *
         SizeOf(StatisticsDType(args.dtype));
}
int64_t CpuLayerNormBackwardWorkspaceBytes(const LayerNormBackwardArgs& args) {
  if (!args.want_dweight && !args.want_dbias) return 0;
  return NormChunks(args.rows) * args.cols *
         SizeOf(StatisticsDType(args.dtype));
}
void CpuRmsNorm(const RmsNormArgs& args, KernelContext& context) {
  HWY_DYNAMIC_DISPATCH(RmsNorm)(args, context);
}
void CpuRmsNormBackward(const RmsNormBackwardArgs& args,
                        KernelContext& context) {
  HWY_DYNAMIC_DISPATCH(RmsNormBackward)(args, context);
}
void CpuLayerNorm(const LayerNormArgs& args, KernelContext& context) {
  HWY_DYNAMIC_DISPATCH(LayerNorm)(args, context);
}
void CpuLayerNormBackward(const LayerNormBackwardArgs& args,
                          KernelContext& context) {
  HWY_DYNAMIC_DISPATCH(LayerNormBackward)(args, context);
}

}  // namespace internal
}  // namespace crosshatch
#endif  // HWY_ONCE
