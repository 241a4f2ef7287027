// SPDX-License-Identifier: Apache-2.0
// Kernels of rows.
#include "crosshatch/tensor/kernels/reference/rows.h"

#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/backends/reference/elements.h"
#include "crosshatch/tensor/backends/reference/entry_points.h"

namespace crosshatch::reference {
namespace {

Reals Row(const RowsInput& x, DType dtype, int64_t row, int64_t cols) {
  Reals values;
  for (int64_t c = 0; c < cols; ++c) {
    values.push_back(ReadElement(x.data, dtype, row * x.row_stride + c));
  }
  return values;
}

void PutRow(const RowsOutput& out, DType dtype, int64_t row,
            const Reals& values, WriteMode mode = WriteMode::kOverwrite) {
  PutRun(out.data, dtype, row * out.row_stride, values, mode);
}

/// Null: `otherwise` for each.
Reals Columns(const void* data, DType dtype, int64_t cols, Real otherwise) {
  return data == nullptr ? Reals(static_cast<size_t>(cols), otherwise)
                         : ReadRun(data, dtype, cols);
}

/// The gradients of both norms; null mean: not centered.
struct NormGradients {
  Reals dweight;
  Reals dbias;
};

/// Calls write(row, dx) for each row.
template <typename Args, typename Write>
NormGradients NormGradientsOf(const Args& args, const void* mean, Write write) {
  const DType statistics = StatisticsDType(args.dtype);
  const Reals weight = Columns(args.weight, args.dtype, args.cols, 1);
  NormGradients sums = {Reals(weight.size()), Reals(weight.size())};
  for (int64_t r = 0; r < args.rows; ++r) {
    const Reals x = Row(args.x, args.dtype, r, args.cols);
    const Reals grad = Row(args.grad, args.dtype, r, args.cols);
    const Real center =
        mean == nullptr ? Real{0} : ReadElement(mean, statistics, r);
    const Real rstd = ReadElement(args.rstd, statistics, r);
    const auto n = static_cast<Real>(args.cols);
    Real shift = 0;
    Real slope = 0;
    for (size_t c = 0; c < x.size(); ++c) {
      const Real xhat = (x[c] - center) * rstd;
      sums.dweight[c] += grad[c] * xhat;
      sums.dbias[c] += grad[c];
      if (mean != nullptr) shift += grad[c] * weight[c] / n;
      slope += grad[c] * weight[c] * xhat / n;
    }
    Reals dx;
    for (size_t c = 0; c < x.size(); ++c) {
      const Real xhat = (x[c] - center) * rstd;
      dx.push_back(rstd * (grad[c] * weight[c] - shift - xhat * slope));
    }
    write(r, dx);
  }
  return sums;
}

int64_t Target(const TargetsInput& targets, int64_t row) {
  return ReadInteger(targets.data, targets.dtype, row);
}

}  // namespace

void SoftmaxKernel(const SoftmaxArgs& args, KernelContext& /*context*/) {
  for (int64_t r = 0; r < args.rows; ++r) {
    PutRow(args.out, args.dtype, r,
           Softmax(Row(args.x, args.dtype, r, args.cols), args.log));
  }
}

void SoftmaxBackwardKernel(const SoftmaxBackwardArgs& args,
                           KernelContext& /*context*/) {
  for (int64_t r = 0; r < args.rows; ++r) {
    PutRow(args.dx, args.dtype, r,
           SoftmaxBackward(Row(args.y, args.dtype, r, args.cols),
                           Row(args.grad, args.dtype, r, args.cols), args.log));
  }
}

void RmsNormKernel(const RmsNormArgs& args, KernelContext& /*context*/) {
  const Reals weight = Columns(args.weight, args.dtype, args.cols, 1);
  for (int64_t r = 0; r < args.rows; ++r) {
    Reals x = Row(args.x, args.dtype, r, args.cols);
    const Real rstd =
        NormOf(x, /*centered=*/false, static_cast<Real>(args.eps)).rstd;
    WriteElement(args.rstd, StatisticsDType(args.dtype), r, rstd);
    for (size_t c = 0; c < x.size(); ++c) x[c] *= rstd * weight[c];
    PutRow(args.out, args.dtype, r, x);
  }
}

void RmsNormBackwardKernel(const RmsNormBackwardArgs& args,
                           KernelContext& /*context*/) {
  const NormGradients sums =
      NormGradientsOf(args, nullptr, [&](int64_t r, const Reals& dx) {
        if (args.want_dx) PutRow(args.dx, args.dtype, r, dx);
      });
  if (args.want_dweight) {
    PutRun(args.dweight, args.dweight_dtype, 0, sums.dweight,
           args.dweight_mode);
  }
}

void LayerNormKernel(const LayerNormArgs& args, KernelContext& /*context*/) {
  const DType statistics = StatisticsDType(args.dtype);
  const Reals weight = Columns(args.weight, args.dtype, args.cols, 1);
  const Reals bias = Columns(args.bias, args.dtype, args.cols, 0);
  for (int64_t r = 0; r < args.rows; ++r) {
    Reals x = Row(args.x, args.dtype, r, args.cols);
    const NormStatistics norm =
        NormOf(x, /*centered=*/true, static_cast<Real>(args.eps));
    WriteElement(args.mean, statistics, r, norm.mean);
    WriteElement(args.rstd, statistics, r, norm.rstd);
    for (size_t c = 0; c < x.size(); ++c) {
      x[c] = (x[c] - norm.mean) * norm.rstd * weight[c] + bias[c];
    }
    PutRow(args.out, args.dtype, r, x);
  }
}

void LayerNormBackwardKernel(const LayerNormBackwardArgs& args,
                             KernelContext& /*context*/) {
  const NormGradients sums =
      NormGradientsOf(args, args.mean, [&](int64_t r, const Reals& dx) {
        if (args.want_dx) PutRow(args.dx, args.dtype, r, dx);
      });
  if (args.want_dweight) {
    PutRun(args.dweight, args.dweight_dtype, 0, sums.dweight,
           args.dweight_mode);
  }
  if (args.want_dbias) {
    PutRun(args.dbias, args.dweight_dtype, 0, sums.dbias, args.dbias_mode);
  }
}

void CrossEntropyKernel(const CrossEntropyArgs& args,
                        KernelContext& /*context*/) {
  const DType statistics = StatisticsDType(args.dtype);
  for (int64_t r = 0; r < args.rows; ++r) {
    const Reals x = Row(args.logits, args.dtype, r, args.cols);
    const Real logsumexp =
        x.empty() ? -std::numeric_limits<Real>::infinity() : LogSumExp(x);
    const int64_t target = Target(args.targets, r);
    Real loss = 0;
    if (target != args.targets.ignore_index) {
      CH_CHECK(target >= 0 && target < args.cols)
          << "cross_entropy kernel: target " << target << " of row " << r
          << " among " << args.cols
          << " classes, and no ignore_index, which rows without a target have";
      loss = logsumexp - x[static_cast<size_t>(target)];
    }
    WriteElement(args.logsumexp, statistics, r, logsumexp);
    WriteElement(args.loss, statistics, r, loss);
  }
}

void CrossEntropyShardKernel(const CrossEntropyShardArgs& args,
                             KernelContext& /*context*/) {
  const DType statistics = StatisticsDType(args.dtype);
  for (int64_t r = 0; r < args.rows; ++r) {
    const Reals x = Row(args.logits, args.dtype, r, args.cols);
    const Real max = ReadElement(args.row_max, statistics, r);
    Real sum = 0;
    for (Real value : x) sum += std::exp(value - max);
    const int64_t target = Target(args.targets, r);
    const int64_t col = target - args.first;
    const bool here =
        target != args.targets.ignore_index && col >= 0 && col < args.cols;
    WriteElement(args.sum_exp, statistics, r, sum);
    WriteElement(args.picked, statistics, r,
                 here ? x[static_cast<size_t>(col)] : 0);
  }
}

void CrossEntropyBackwardKernel(const CrossEntropyBackwardArgs& args,
                                KernelContext& /*context*/) {
  const DType statistics = StatisticsDType(args.dtype);
  for (int64_t r = 0; r < args.rows; ++r) {
    Reals x = Row(args.logits, args.dtype, r, args.cols);
    const Real logsumexp = ReadElement(args.logsumexp, statistics, r);
    const Real grad = ReadElement(args.grad, statistics, r * args.grad_stride);
    const int64_t target = Target(args.targets, r);
    const bool ignored = target == args.targets.ignore_index;
    for (size_t c = 0; c < x.size(); ++c) {
      const bool picked = args.first + static_cast<int64_t>(c) == target;
      x[c] =
          ignored ? 0 : (std::exp(x[c] - logsumexp) - (picked ? 1 : 0)) * grad;
    }
    PutRow(args.dlogits, args.dtype, r, x);
  }
}

void EmbeddingKernel(const EmbeddingArgs& args, KernelContext& /*context*/) {
  for (int64_t r = 0; r < args.rows; ++r) {
    const int64_t row = ReadInteger(args.ids, args.ids_dtype, r) - args.first;
    const bool here = row >= 0 && row < args.table_rows;
    for (int64_t c = 0; c < args.cols; ++c) {
      const int64_t to = r * args.out.row_stride + c;
      if (here) {
        CopyElement(args.out.data, to, args.table.data,
                    row * args.table.row_stride + c, args.dtype);
      } else {
        ZeroElement(args.out.data, to, args.dtype);
      }
    }
  }
}

void EmbeddingBackwardKernel(const EmbeddingBackwardArgs& args,
                             KernelContext& /*context*/) {
  const auto cols = static_cast<size_t>(args.cols);
  std::vector<Reals> sums(static_cast<size_t>(args.table_rows), Reals(cols));
  for (int64_t r = 0; r < args.rows; ++r) {
    const int64_t row = ReadInteger(args.ids, args.ids_dtype, r) - args.first;
    if (row < 0 || row >= args.table_rows) continue;
    const Reals grad = Row(args.grad, args.dtype, r, args.cols);
    for (size_t c = 0; c < cols; ++c)
      sums[static_cast<size_t>(row)][c] += grad[c];
  }
  for (int64_t row = 0; row < args.table_rows; ++row) {
    PutRow(args.dtable, args.dtable_dtype, row, sums[static_cast<size_t>(row)],
           args.mode);
  }
}

}  // namespace crosshatch::reference
