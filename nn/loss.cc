// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/loss.h"

#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "crosshatch/base/check.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/dtensor/layout/grad_layout.h"
#include "crosshatch/dtensor/local_map.h"
#include "crosshatch/dtensor/redistribute.h"
#include "crosshatch/mesh/mesh_collectives.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/cast.h"
#include "crosshatch/tensor/ops/embedding.h"
#include "crosshatch/tensor/ops/index.h"
#include "crosshatch/tensor/ops/matmul.h"
#include "crosshatch/tensor/ops/pointwise.h"
#include "crosshatch/tensor/ops/reduce.h"
#include "crosshatch/tensor/ops/view.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch::nn {
namespace {

using Reduction = CrossEntropyLossOptions::Reduction;

// Reduces pending sums of `t` explicitly, so that no implicit redistribution is
// reported.
Tensor WithoutPartials(const Tensor& t) {
  if (!t.is_distributed() || !LayoutOf(t).is_partial()) return t;
  return Redistribute(t, LayoutOf(t).WithoutPartials());
}

// Returns the layout of the rows of tensors in `layout`, whose last dim is the
// classes.
Layout RowsLayout(const Layout& layout) {
  std::vector<DimSharding> dims(layout.dims().begin(), layout.dims().end() - 1);
  return Layout(layout.mesh(), std::move(dims));
}

// Returns for each row this rank's summand of sum_c w_c (x_target - x_c).
// `logits` [..., n] holds n of `classes` classes, beginning at `first`. `total`
// is the sum of all weights.
Tensor MarginHere(const Tensor& logits, const Tensor& targets,
                  const Tensor& weights, const Tensor& total, int64_t first,
                  int64_t classes) {
  const int last = logits.ndim() - 1;
  const Tensor of_target =
      Squeeze(Apply1(GatherOp({.dim = last, .bound = classes, .first = first}),
                     {logits, Unsqueeze(targets, -1)}),
              -1);
  const Tensor of_all =
      last == 0 ? Dot(logits, weights) : MatVec(logits, weights);
  return Sub(Mul(of_target, total), of_all);
}

// Returns the same for whole tensors. If logits are split, each rank computes
// its classes.
Tensor Margin(const Tensor& logits, const Tensor& targets,
              const Tensor& weights, const Tensor& total) {
  const int64_t classes = logits.sizes().back();
  if (!logits.is_distributed()) {
    return MarginHere(logits, targets, weights, total, 0, classes);
  }
  const DeviceMesh& mesh = MeshOf(logits);
  const Layout& layout = LayoutOf(logits);
  const int last = logits.ndim() - 1;
  const Layout rows = RowsLayout(layout);
  Layout result = rows;
  for (const int axis : layout.axes_of_dim(last)) {
    result = result.WithPartial(axis, ReduceOp::kSum);
  }
  const int64_t first =
      layout.DimInterval(last, classes, *mesh.coordinate()).begin;
  const Tensor whole_total = LocalTensor(WithoutPartials(total));
  absl::StatusOr<TensorList> margin = LocalMap(
      [&](TensorSpan in) -> TensorList {
        return {MarginHere(in[0], in[1], in[2], whole_total, first, classes)};
      },
      {logits, ReplicatedLike(targets, logits),
       ReplicatedLike(weights, logits)},
      mesh,
      {.inputs = {{layout, layout},
                  {rows},
                  {Layout(layout.mesh(), {layout.sharding(last)})}},
       .outputs = {{result, targets.sizes(), result.WithoutPartials()}},
       .redistribute_inputs = true});
  CH_CHECK_OK(margin.status())
      << " in cross entropy of logits " << logits.Describe();
  return WithoutPartials((*margin)[0]);
}

// The inputs that the loss derives from the targets.
struct Targets {
  Tensor indices;
  Tensor counts;   // Bool; undefined if none can be ignored.
  Tensor weights;  // Weights of the target classes, 0 if ignored; undefined for
                   // all 1.
};

Targets Prepare(const Tensor& targets, const Tensor& like, DType dtype,
                const CrossEntropyLossOptions& options) {
  const NoGrad no_grad;
  Targets prepared;
  prepared.indices = ReplicatedLike(targets, like);
  if (targets.dtype() == kUInt16) {
    prepared.indices = ToDType(prepared.indices, kInt64);
  }
  const DType index_dtype = prepared.indices.dtype();
  const auto constant = [&](int64_t value) {
    return Full({}, static_cast<double>(value), index_dtype);
  };
  prepared.counts = NotEqual(prepared.indices, constant(options.ignore_index));
  prepared.indices = Where(prepared.counts, prepared.indices, constant(0));
  if (options.class_weights.defined()) {
    const Tensor table = ReplicatedLike(
        Unsqueeze(ToDType(options.class_weights, dtype), -1), like);
    prepared.weights =
        Where(prepared.counts, Squeeze(Embedding(prepared.indices, table), -1),
              Full({}, 0, dtype));
  }
  return prepared;
}

// [...]: the loss of each row.
Tensor IndexLosses(const Tensor& logits, const Tensor& targets,
                   const Targets& prepared,
                   const CrossEntropyLossOptions& options) {
  Tensor losses = CrossEntropy(
      logits, targets,
      {.reduction = Reduction::kNone, .ignore_index = options.ignore_index});
  const double smoothing = options.label_smoothing;
  if (smoothing == 0) {
    return prepared.weights.defined() ? Mul(losses, prepared.weights) : losses;
  }
  const DType dtype = losses.dtype();
  const int64_t classes = logits.sizes().back();
  const double share = smoothing / static_cast<double>(classes);
  // A row's loss is (1 - s) w_t (lse - x_t) + s / V sum_c w_c (lse - x_c); with
  // lse = loss + x_t the second sum is W loss + sum_c w_c (x_t - x_c).
  const bool weighted = options.class_weights.defined();
  const Tensor weights =
      weighted ? ToDType(options.class_weights, dtype) : Ones({classes}, dtype);
  const Tensor total = Sum(weights);
  const Tensor margin = Margin(WithoutPartials(ToDType(logits, dtype)),
                               prepared.indices, weights, total);
  if (weighted) {
    losses = Mul(losses, Add(Mul(prepared.weights, 1 - smoothing),
                             Mul(WithoutPartials(total), share)));
  }
  return Add(losses, Where(prepared.counts, margin, Full({}, 0, dtype)), share);
}

// With q_c = w_c p_c and smoothed p: sum_c q_c (lse - x_c).
Tensor ProbabilityLosses(const Tensor& logits, const Tensor& targets,
                         const CrossEntropyLossOptions& options) {
  const DType dtype = StatisticsDType(logits.dtype());
  const Tensor x = WithoutPartials(ToDType(logits, dtype));
  Tensor q = ReplicatedLike(ToDType(targets, dtype), logits);
  if (options.label_smoothing != 0) {
    q = Add(
        Mul(q, 1 - options.label_smoothing),
        options.label_smoothing / static_cast<double>(logits.sizes().back()));
  }
  if (options.class_weights.defined()) {
    q = Mul(q, ReplicatedLike(ToDType(options.class_weights, dtype), logits));
  }
  const Shape last = {-1};
  return Sub(Mul(LogSumExp(x, last), WithoutPartials(Sum(q, last))),
             WithoutPartials(Sum(Mul(x, q), last)));
}

void CheckOptions(const Tensor& logits, const Tensor& targets,
                  const CrossEntropyLossOptions& options) {
  CH_CHECK(logits.ndim() >= 1 && IsFloatingPoint(logits.dtype()))
      << "cross entropy of logits " << logits.Describe()
      << ": they are floating point, [..., classes]";
  CH_CHECK(options.label_smoothing >= 0 && options.label_smoothing <= 1)
      << "cross entropy: label_smoothing " << options.label_smoothing
      << " is not in [0, 1]";
  const Tensor& weights = options.class_weights;
  CH_CHECK(!weights.defined() ||
           (weights.sizes() == Shape{logits.sizes().back()} &&
            IsFloatingPoint(weights.dtype()) && !weights.requires_grad()))
      << "cross entropy of logits " << logits.Describe()
      << ": class_weights are a constant of one weight for each class, not "
      << weights.Describe();
  if (IsFloatingPoint(targets.dtype())) {
    CH_CHECK(targets.sizes() == logits.sizes() && !targets.requires_grad())
        << "cross entropy of logits " << logits.Describe()
        << ": class probabilities are a constant of the logits' sizes, not "
        << targets.Describe();
  }
  CH_CHECK(!options.mean_over.has_value() ||
           options.reduction == Reduction::kMean)
      << "cross entropy: mean_over needs Reduction::kMean";
}

// Returns the sum over the ranks of `mesh` of the one-element tensors `t`, as a
// plain tensor without gradient.
Tensor SumOver(const Tensor& t, const DeviceMesh& mesh) {
  const NoGrad no_grad;
  const Tensor here = LocalTensor(WithoutPartials(t));
  const Layout replicated = Layout::Replicated(mesh.layout(), here.ndim());
  Layout summands = replicated;
  for (int axis = 0; axis < mesh.ndim(); ++axis) {
    summands = summands.WithPartial(axis, ReduceOp::kSum);
  }
  return LocalTensor(Redistribute(
      MakeDTensor(here, mesh, summands, here.sizes()), replicated));
}

// Returns `divisor`, or NaN if it is 0. On a mesh the loss sums one quotient
// per rank, and a quotient by 0 may be infinite.
Tensor NanForZero(const Tensor& divisor) {
  const NoGrad no_grad;
  const DType dtype = divisor.dtype();
  return Where(Equal(divisor, Full({}, 0, dtype)),
               Full({}, std::numeric_limits<double>::quiet_NaN(), dtype),
               divisor);
}

}  // namespace

Tensor CrossEntropyLoss(const Tensor& logits, const Tensor& targets,
                        const CrossEntropyLossOptions& options) {
  CheckOptions(logits, targets, options);
  const bool probabilities = IsFloatingPoint(targets.dtype());
  const bool plain_form = !probabilities && options.label_smoothing == 0 &&
                          !options.class_weights.defined();
  // Not for the mean of distributed rows, because CrossEntropy reduces its
  // divisor implicitly.
  if (plain_form && !options.mean_over.has_value() &&
      (!logits.is_distributed() || options.reduction != Reduction::kMean)) {
    return CrossEntropy(
        logits, targets,
        {.reduction = options.reduction, .ignore_index = options.ignore_index});
  }
  const DType dtype = StatisticsDType(logits.dtype());
  Targets prepared;
  if (!probabilities) prepared = Prepare(targets, logits, dtype, options);
  const Tensor losses = probabilities
                            ? ProbabilityLosses(logits, targets, options)
                            : IndexLosses(logits, targets, prepared, options);
  if (options.reduction == Reduction::kNone) return losses;
  const Tensor sum = Sum(losses);
  if (options.reduction == Reduction::kSum) return sum;

  Tensor divisor;
  if (probabilities) {
    divisor = Full({}, static_cast<double>(losses.numel()), dtype);
  } else {
    const NoGrad no_grad;
    divisor = Sum(prepared.weights.defined() ? prepared.weights
                                             : ToDType(prepared.counts, dtype));
  }
  const std::optional<DeviceMesh>& mesh = options.mean_over;
  divisor =
      mesh.has_value() ? SumOver(divisor, *mesh) : WithoutPartials(divisor);
  if (options.class_weights.defined()) divisor = NanForZero(divisor);
  if (!mesh.has_value()) return Div(sum, divisor);
  return Div(Mul(sum, static_cast<double>(mesh->size())), divisor);
}

Tensor MeanOverBatch(const Tensor& sum, const Tensor& count,
                     const DeviceMesh& batch) {
  CH_CHECK(sum.numel() == 1 && IsFloatingPoint(sum.dtype()) &&
           count.numel() == 1 && !count.requires_grad())
      << "MeanOverBatch takes a floating-point sum of one element and its "
      << "count, a constant, not " << sum.Describe() << " and "
      << count.Describe();
  const DType dtype =
      count.dtype() == kFloat64 ? kFloat64 : StatisticsDType(sum.dtype());
  const Tensor mean =
      Div(Mul(ToDType(sum, dtype), static_cast<double>(batch.size())),
          SumOver(ToDType(count, dtype), batch));
  return ToDType(mean, sum.dtype());
}

Tensor MeanOverBatch(const Tensor& sum, double count, const DeviceMesh& batch) {
  return MeanOverBatch(sum, Full({}, count, StatisticsDType(sum.dtype())),
                       batch);
}

absl::StatusOr<double> MeanOverAxis(const Tensor& loss,
                                    const DeviceMesh& mesh) {
  CH_CHECK_EQ(loss.numel(), 1) << "MeanOverAxis of " << loss.Describe();
  CH_ASSIGN_OR_RETURN(
      const std::vector<double> sum,
      SumOverMesh(mesh, LocalTensor(WithoutPartials(loss.Detach())), "mean"));
  return sum[0] / mesh.size();
}

}  // namespace crosshatch::nn
