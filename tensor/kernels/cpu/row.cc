// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/kernels/cpu/targets.h"
// Before the headers that are compiled once for each target.
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/kernels/cpu/entry_points.h"
#include "crosshatch/tensor/kernels/cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/kernels/cpu/row.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "crosshatch/tensor/kernels/cpu/row-inl.h"
#include "hwy/highway.h"

#ifndef CROSSHATCH_TENSOR_KERNELS_CPU_ROW_ONCE_
#define CROSSHATCH_TENSOR_KERNELS_CPU_ROW_ONCE_
namespace crosshatch::internal {
namespace {

/// Rows whose contributions to a column's gradient are summed by one thread.
constexpr int64_t kNormChunk = 256;

int64_t NormChunks(int64_t rows) {
  return (rows + kNormChunk - 1) / kNormChunk;
}

}  // namespace
}  // namespace crosshatch::internal
#endif  // CROSSHATCH_TENSOR_KERNELS_CPU_ROW_ONCE_

HWY_BEFORE_NAMESPACE();
namespace crosshatch {
namespace HWY_NAMESPACE {
namespace {

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

/// Computes either norm: if `mean` is null, rms_norm.
template <typename T>
void Normalize(const LayerNormArgs& args, KernelContext& context) {
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
  const LayerNormArgs norm = {.rows = args.rows,
                              .cols = args.cols,
                              .x = args.x,
                              .weight = args.weight,
                              .out = args.out,
                              .rstd = args.rstd,
                              .dtype = args.dtype,
                              .eps = args.eps};
  internal::DispatchFloat(args.dtype, "rms_norm", [&](auto zero) HWY_ATTR {
    Normalize<decltype(zero)>(norm, context);
  });
}

void LayerNorm(const LayerNormArgs& args, KernelContext& context) {
  internal::DispatchFloat(args.dtype, "layer_norm", [&](auto zero) HWY_ATTR {
    Normalize<decltype(zero)>(args, context);
  });
}

/// Computes dx = rstd * (g - mean(g) - xhat * mean(g * xhat)) with g = grad *
/// weight and xhat = (x - mean) * rstd. Without centering, mean(g) is omitted.
template <typename T>
void InputGradient(const LayerNormBackwardArgs& args, KernelContext& context) {
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
          RowWriter<T> dx(args.dx, args.dtype, r);
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
void ColumnGradient(const LayerNormBackwardArgs& args, bool with_xhat,
                    void* out, WriteMode mode, KernelContext& context) {
  T* const workspace = static_cast<T*>(args.workspace);
  const DType out_dtype = args.dweight_dtype;
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

/// Computes the gradients of either norm: if `mean` is null, of rms_norm.
template <typename T>
void NormBackwardAs(const LayerNormBackwardArgs& args, KernelContext& context) {
  if (args.want_dx) InputGradient<T>(args, context);
  if (args.want_dweight) {
    ColumnGradient<T>(args, true, args.dweight, args.dweight_mode, context);
  }
  if (args.want_dbias) {
    ColumnGradient<T>(args, false, args.dbias, args.dbias_mode, context);
  }
}

void RmsNormBackward(const RmsNormBackwardArgs& args, KernelContext& context) {
  const LayerNormBackwardArgs norm = {.rows = args.rows,
                                      .cols = args.cols,
                                      .grad = args.grad,
                                      .x = args.x,
                                      .weight = args.weight,
                                      .rstd = args.rstd,
                                      .dx = args.dx,
                                      .dweight = args.dweight,
                                      .dtype = args.dtype,
                                      .dweight_dtype = args.dweight_dtype,
                                      .dweight_mode = args.dweight_mode,
                                      .want_dx = args.want_dx,
                                      .want_dweight = args.want_dweight,
                                      .want_dbias = false,
                                      .workspace = args.workspace};
  internal::DispatchFloat(args.dtype, "rms_norm_backward",
                          [&](auto zero) HWY_ATTR {
                            NormBackwardAs<decltype(zero)>(norm, context);
                          });
}

void LayerNormBackward(const LayerNormBackwardArgs& args,
                       KernelContext& context) {
  internal::DispatchFloat(args.dtype, "layer_norm_backward",
                          [&](auto zero) HWY_ATTR {
                            NormBackwardAs<decltype(zero)>(args, context);
                          });
}

template <typename T>
void SoftmaxAs(const SoftmaxArgs& args, KernelContext& context) {
  internal::ForRanges(
      context, args.rows, args.cols * 4,
      [&](int64_t begin, int64_t end) HWY_ATTR {
        for (int64_t r = begin; r < end; ++r) {
          RowReader<T> x(args.x, args.dtype, r);
          RowWriter<T> out(args.out, args.dtype, r);
          const T max = ReduceRow(kReduction<MaxOp, T>, x, args.cols);
          const T sum = SumExpRow(x, args.cols, max);
          const T factor = T(1) / sum;
          const T log_sum = std::log(sum);
          ForPieces(args.cols, [&](int64_t start, int64_t count) HWY_ATTR {
            const T* from = x.Piece(start, count);
            T* to = out.Begin(start);
            if (args.log) {
              MapRun(
                  [=](auto d, auto v) HWY_ATTR {
                    return hn::Sub(hn::Sub(v, hn::Set(d, max)),
                                   hn::Set(d, log_sum));
                  },
                  to, count, from);
            } else {
              MapRun(
                  [=](auto d, auto v) HWY_ATTR {
                    return hn::Mul(
                        ExpOfNonPositive(d, hn::Sub(v, hn::Set(d, max))),
                        hn::Set(d, factor));
                  },
                  to, count, from);
            }
            out.End(start, count);
          });
        }
      });
}

CH_FLOAT_KERNEL(Softmax, "softmax", args.dtype)

template <typename T>
void SoftmaxBackwardAs(const SoftmaxBackwardArgs& args,
                       KernelContext& context) {
  internal::ForRanges(
      context, args.rows, args.cols * 2,
      [&](int64_t begin, int64_t end) HWY_ATTR {
        HWY_ALIGN T products[kReduceRun];
        for (int64_t r = begin; r < end; ++r) {
          RowReader<T> y(args.y, args.dtype, r);
          RowReader<T> grad(args.grad, args.dtype, r);
          RowWriter<T> dx(args.dx, args.dtype, r);
          PairwiseStack<T> stack(kReduction<SumOp, T>);
          ForPieces(args.cols, [&](int64_t start, int64_t count) HWY_ATTR {
            const T* g = grad.Piece(start, count);
            if (!args.log) {
              const T* p = y.Piece(start, count);
              for (int64_t i = 0; i < count; ++i) products[i] = g[i] * p[i];
              g = products;
            }
            stack.Push(ReduceRun<SumOp>(g, count));
          });
          const T sum = stack.Total();
          ForPieces(args.cols, [&](int64_t start, int64_t count) HWY_ATTR {
            const T* g = grad.Piece(start, count);
            const T* p = y.Piece(start, count);
            T* to = dx.Begin(start);
            if (args.log) {
              MapRun(
                  [=](auto d, auto vg, auto vy) HWY_ATTR {
                    return hn::NegMulAdd(FullExp(d, vy), hn::Set(d, sum), vg);
                  },
                  to, count, g, p);
            } else {
              MapRun(
                  [=](auto d, auto vg, auto vy) HWY_ATTR {
                    return hn::Mul(hn::Sub(vg, hn::Set(d, sum)), vy);
                  },
                  to, count, g, p);
            }
            dx.End(start, count);
          });
        }
      });
}

CH_FLOAT_KERNEL(SoftmaxBackward, "softmax_backward", args.dtype)

int64_t Target(const TargetsInput& targets, int64_t r) {
  return internal::IndexAt("cross_entropy", targets.data, targets.dtype, r);
}

template <typename T>
T Picked(const RowsInput& logits, DType dtype, int64_t r, int64_t col) {
  T value;
  LoadRun(internal::ElementAt(logits.data, dtype, r * logits.row_stride + col),
          dtype, 1, 1, &value);
  return value;
}

template <typename T>
void CrossEntropyAs(const CrossEntropyArgs& args, KernelContext& context) {
  internal::ForRanges(
      context, args.rows, args.cols * 2,
      [&](int64_t begin, int64_t end) HWY_ATTR {
        for (int64_t r = begin; r < end; ++r) {
          RowReader<T> x(args.logits, args.dtype, r);
          const T max = ReduceRow(kReduction<MaxOp, T>, x, args.cols);
          const T logsumexp = max + std::log(SumExpRow(x, args.cols, max));
          const int64_t target = Target(args.targets, r);
          T loss = 0;
          if (target != args.targets.ignore_index) {
            CH_CHECK(target >= 0 && target < args.cols)
                << "cross_entropy kernel: target " << target << " of row " << r
                << " among " << args.cols
                << " classes, and no ignore_index, which rows without a "
                   "target have";
            loss = logsumexp - Picked<T>(args.logits, args.dtype, r, target);
          }
          static_cast<T*>(args.logsumexp)[r] = logsumexp;
          static_cast<T*>(args.loss)[r] = loss;
        }
      });
}

CH_FLOAT_KERNEL(CrossEntropy, "cross_entropy", args.dtype)

template <typename T>
void CrossEntropyShardAs(const CrossEntropyShardArgs& args,
                         KernelContext& context) {
  internal::ForRanges(
      context, args.rows, args.cols * 2,
      [&](int64_t begin, int64_t end) HWY_ATTR {
        for (int64_t r = begin; r < end; ++r) {
          RowReader<T> x(args.logits, args.dtype, r);
          const T max = static_cast<const T*>(args.row_max)[r];
          static_cast<T*>(args.sum_exp)[r] = SumExpRow(x, args.cols, max);
          const int64_t target = Target(args.targets, r);
          const int64_t col = target - args.first;
          const bool here = target != args.targets.ignore_index && col >= 0 &&
                            col < args.cols;
          static_cast<T*>(args.picked)[r] =
              here ? Picked<T>(args.logits, args.dtype, r, col) : T(0);
        }
      });
}

CH_FLOAT_KERNEL(CrossEntropyShard, "cross_entropy_shard", args.dtype)

template <typename T>
void CrossEntropyBackwardAs(const CrossEntropyBackwardArgs& args,
                            KernelContext& context) {
  internal::ForRanges(
      context, args.rows, args.cols * 2,
      [&](int64_t begin, int64_t end) HWY_ATTR {
        HWY_ALIGN T buffer[kReduceRun];
        for (int64_t r = begin; r < end; ++r) {
          RowReader<T> x(args.logits, args.dtype, r);
          RowWriter<T> out(args.dlogits, args.dtype, r);
          const int64_t target = Target(args.targets, r);
          const bool ignored = target == args.targets.ignore_index;
          const T logsumexp = static_cast<const T*>(args.logsumexp)[r];
          const T grad = static_cast<const T*>(args.grad)[r * args.grad_stride];
          ForPieces(args.cols, [&](int64_t start, int64_t count) HWY_ATTR {
            T* to = out.Begin(start);
            if (ignored) {
              std::fill(to, to + count, T(0));
              out.End(start, count);
              return;
            }
            MapRun(
                [=](auto d, auto v) HWY_ATTR {
                  return ExpOfNonPositive(d, hn::Sub(v, hn::Set(d, logsumexp)));
                },
                buffer, count, x.Piece(start, count));
            const int64_t at = target - args.first - start;
            if (at >= 0 && at < count) buffer[at] -= T(1);
            for (int64_t i = 0; i < count; ++i) to[i] = buffer[i] * grad;
            out.End(start, count);
          });
        }
      });
}

CH_FLOAT_KERNEL(CrossEntropyBackward, "cross_entropy_backward", args.dtype)

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace crosshatch
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace crosshatch {

CH_CPU_KERNEL(RmsNorm)
CH_CPU_KERNEL(RmsNormBackward)
CH_CPU_KERNEL(LayerNorm)
CH_CPU_KERNEL(LayerNormBackward)
CH_CPU_KERNEL(Softmax)
CH_CPU_KERNEL(SoftmaxBackward)
CH_CPU_KERNEL(CrossEntropy)
CH_CPU_KERNEL(CrossEntropyShard)
CH_CPU_KERNEL(CrossEntropyBackward)

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

}  // namespace internal
}  // namespace crosshatch
#endif  // HWY_ONCE
