// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "crosshatch/base/check.h"
#include "crosshatch/dtensor/redistribution/executor.h"
#include "crosshatch/dtensor/redistribution/plan.h"
#include "crosshatch/dtensor/redistribution/runtime.h"
#include "crosshatch/dtensor/rules/factor_rule.h"
#include "crosshatch/dtensor/rules/gather_parts.h"
#include "crosshatch/dtensor/rules/op_rules.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/cast.h"
#include "crosshatch/tensor/ops/in_place.h"
#include "crosshatch/tensor/ops/pointwise.h"
#include "crosshatch/tensor/ops/reduce.h"
#include "crosshatch/tensor/ops/settle.h"
#include "crosshatch/tensor/ops/view.h"

namespace crosshatch {
namespace {

constexpr ReduceKind kReduceKinds[] = {
    ReduceKind::kSum,    ReduceKind::kMean,         ReduceKind::kProduct,
    ReduceKind::kMax,    ReduceKind::kMin,          ReduceKind::kArgMax,
    ReduceKind::kArgMin, ReduceKind::kSumOfSquares,
};

// A mean over shards: the local sum over the global count. Shards may differ in
// size, so the mean of their means would not do.
class ShardOfMean final : public LocalProgram {
 public:
  ShardOfMean(const ReductionOp& mean, int64_t count)
      : dims_(mean.dims),
        keepdim_(mean.keepdim),
        dtype_(mean.out_dtype),
        factor_(1.0 / static_cast<double>(count)) {}

  TensorList Run(const Op& /*op*/, TensorSpan locals,
                 const DeviceMesh& /*mesh*/) const override {
    const DType wide = dtype_ == kFloat64 ? kFloat64 : kFloat32;
    TensorList sum =
        ReductionOp(ReduceKind::kSum, dims_, keepdim_, wide).Forward(locals);
    ScaleInPlaceOp(factor_).Forward(sum);
    return dtype_ == wide ? sum : CastOp(dtype_).Forward(sum);
  }

 private:
  const Shape dims_;
  const bool keepdim_;
  const DType dtype_;
  const double factor_;
};

// The index of the largest or smallest element of a dim that is split: each
// rank finds its own, and the ranks exchange these.
class ShardedArg final : public LocalProgram {
 public:
  /// \param parts of the dim, by rank along `axes`
  /// \param begin of this rank's part
  ShardedArg(const ReductionOp& op, absl::Span<const int> axes,
             absl::Span<const Interval> parts, int64_t begin)
      : dim_(static_cast<int>(op.dims[0])),
        keepdim_(op.keepdim),
        arg_(op.kind),
        extreme_(op.kind == ReduceKind::kArgMax ? ReduceKind::kMax
                                                : ReduceKind::kMin),
        axes_(axes.begin(), axes.end()),
        begin_(begin) {
    for (const Interval& part : parts) counts_.push_back(part.size() > 0);
  }

  TensorList Run(const Op& /*op*/, TensorSpan locals,
                 const DeviceMesh& mesh) const override {
    const Tensor& local = locals[0];
    Tensor values, indices;
    if (local.size(dim_) > 0) {
      values = Reduce(extreme_, local, true, local.dtype());
      indices = Reduce(arg_, local, true, kInt64);
      indices = UnaryPointwiseOp(UnaryOp::kAddScalar, double(begin_))
                    .Forward({&indices, 1})[0];
    } else {
      values = local;
      indices = Empty(local.sizes(), kInt64);
    }
    values = GatherParts(values, dim_, counts_, axes_, mesh, "argmax");
    indices = GatherParts(indices, dim_, counts_, axes_, mesh, "argmax");

    // indices[best], by a sum of one term.
    const Tensor best = Reduce(arg_, values, true, kInt64);
    Shape along(local.sizes().size(), 1);
    along[dim_] = values.size(dim_);
    const Tensor places =
        ViewOp(along).Forward({Arange(values.size(dim_), kInt64)})[0];
    const Tensor here =
        BinaryPointwiseOp(BinaryOp::kEqual).Forward({places, best})[0];
    const Tensor picked =
        WhereOp().Forward({here, indices, Full({}, 0, kInt64)})[0];
    return {Reduce(ReduceKind::kSum, picked, keepdim_, kInt64)};
  }

 private:
  Tensor Reduce(ReduceKind kind, const Tensor& a, bool keepdim,
                DType dtype) const {
    return ReductionOp(kind, {dim_}, keepdim, dtype).Forward({&a, 1})[0];
  }

  const int dim_;
  const bool keepdim_;
  const ReduceKind arg_;
  const ReduceKind extreme_;
  const absl::InlinedVector<int, 2> axes_;
  const int64_t begin_;
  std::vector<int64_t> counts_;  // Of candidates, by rank.
};

// Whether reductions are pending, and all by `op`.
bool AllPending(const Layout& layout, ReduceOp op) {
  return layout.is_partial() &&
         std::all_of(layout.axis_states().begin(), layout.axis_states().end(),
                     [op](const AxisState& state) {
                       return !state.is_partial() || state.op == op;
                     });
}

RuleResult ReductionRule(const RuleCall& call) {
  const auto& op = static_cast<const ReductionOp&>(call.op);
  const Shape& sizes = call.inputs[0].sizes;
  FactorRule rule;
  ReduceOp pending = ReduceOp::kSum;
  // Collectives do not reduce bool.
  bool whole = call.inputs[0].dtype == kBool && op.kind != ReduceKind::kSum;
  switch (op.kind) {
    case ReduceKind::kSum:
    case ReduceKind::kMean:
      rule.linearity = Linearity::kMultilinear;
      break;
    case ReduceKind::kSumOfSquares:
      break;
    case ReduceKind::kProduct:
      pending = ReduceOp::kProduct;
      break;
    case ReduceKind::kMax:
      pending = ReduceOp::kMax;
      break;
    case ReduceKind::kMin:
      pending = ReduceOp::kMin;
      break;
    case ReduceKind::kArgMax:
    case ReduceKind::kArgMin:
      whole = whole || op.dims.size() != 1 || sizes[op.dims[0]] == 0;
      break;
  }
  // The largest of the largest is the largest; so are products.
  if (pending != ReduceOp::kSum && AllPending(call.inputs[0].layout, pending)) {
    rule.linearity = Linearity::kMove;
  }
  DimFactors dims;
  FactorRule::Output output;
  int64_t count = 1;
  for (int d = 0; d < static_cast<int>(sizes.size()); ++d) {
    const bool reduced =
        std::find(op.dims.begin(), op.dims.end(), d) != op.dims.end();
    dims.push_back(
        {reduced ? rule.Add(sizes[d], whole, pending) : rule.Add(sizes[d]), 1});
    if (!reduced) {
      output.dims.push_back(dims.back());
      output.sizes.push_back(sizes[d]);
    } else {
      count *= sizes[d];
      if (op.keepdim) {
        output.dims.push_back({});
        output.sizes.push_back(1);
      }
    }
  }
  rule.inputs = {dims};
  rule.outputs = {std::move(output)};
  RuleResult result = SolveFactors(call, rule);
  const bool split =
      std::any_of(op.dims.begin(), op.dims.end(), [&result](int64_t d) {
        return result.inputs[0].is_sharded(static_cast<int>(d));
      });
  if (op.kind == ReduceKind::kMean && split) {
    result.program = std::make_unique<ShardOfMean>(op, count);
  }
  const bool arg =
      op.kind == ReduceKind::kArgMax || op.kind == ReduceKind::kArgMin;
  if (arg && split) {
    const int dim = static_cast<int>(op.dims[0]);
    const Layout& layout = result.inputs[0];
    const absl::Span<const int> axes = layout.axes_of_dim(dim);
    result.program = std::make_unique<ShardedArg>(
        op, axes, layout.DimIntervals(dim, sizes[dim]),
        layout.DimInterval(dim, sizes[dim], call.coordinate).begin);
    for (int axis : axes) {
      result.outputs[0].layout = result.outputs[0].layout.WithReplicate(axis);
    }
  }
  return result;
}

// The reductions are what the op is for: not an implicit redistribution.
class FinishReductions final : public LocalProgram {
 public:
  explicit FinishReductions(PreparedPlan plan) : plan_(std::move(plan)) {}

  TensorList Run(const Op& op, TensorSpan locals,
                 const DeviceMesh& mesh) const override {
    return {DTensorRuntime::Current().Redistribute(
        plan_, locals[0], mesh, CommOrigin::Op(op.info().name))};
  }

 private:
  const PreparedPlan plan_;
};

RuleResult SettleRule(const RuleCall& call) {
  const RuleInput& input = call.inputs[0];
  Layout settled = input.layout;
  for (int axis = 0; axis < call.mesh.ndim(); ++axis) {
    if (settled.state_of_axis(axis).is_partial()) {
      settled = settled.WithReplicate(axis);
    }
  }
  RuleResult result;
  result.inputs = {input.layout};
  result.outputs.push_back({settled, input.sizes});
  if (input.layout.is_partial()) {
    absl::StatusOr<RedistributePlan> plan = PlanRedistribute(
        input.layout, settled, input.sizes, SizeOf(input.dtype));
    CH_CHECK_OK(plan.status());
    result.program = std::make_unique<FinishReductions>(
        Prepare(*std::move(plan), input.sizes, call.coordinate));
  }
  return result;
}

}  // namespace

void AddReductionRules(OpRuleTable& table) {
  for (ReduceKind kind : kReduceKinds) {
    table[&ReductionOp::InfoOf(kind)] = {ReductionRule};
  }
  table[&SettleOp::kInfo] = {SettleRule};
}

}  // namespace crosshatch
