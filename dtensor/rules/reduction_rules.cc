// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "crosshatch/base/check.h"
#include "crosshatch/dtensor/redistribution/executor.h"
#include "crosshatch/dtensor/redistribution/plan.h"
#include "crosshatch/dtensor/redistribution/runtime.h"
#include "crosshatch/dtensor/rules/op_rule.h"
#include "crosshatch/dtensor/rules/op_rules.h"
#include "crosshatch/dtensor/rules/split_dim.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/cast.h"
#include "crosshatch/tensor/ops/in_place.h"
#include "crosshatch/tensor/ops/pointwise.h"
#include "crosshatch/tensor/ops/reduce.h"
#include "crosshatch/tensor/ops/view.h"

namespace crosshatch {
namespace {

constexpr ReduceKind kReduceKinds[] = {
    ReduceKind::kSum,    ReduceKind::kMean,         ReduceKind::kProduct,
    ReduceKind::kMax,    ReduceKind::kMin,          ReduceKind::kArgMax,
    ReduceKind::kArgMin, ReduceKind::kSumOfSquares,
};

PreparedPlan PlanReductions(const RuleCall& call, const Layout& from,
                            ShapeView sizes, DType dtype) {
  return Prepare(from, from.WithoutPartials(), sizes, dtype, call.coordinate);
}

DType WideOf(DType dtype) { return dtype == kFloat64 ? kFloat64 : kFloat32; }

// Returns the program of a sum, product, mean or sum of squares over shards, in
// f32 or f64.
//
// - A mean is the local sum over the global count. A mean of the shards' means
//   would be wrong, because shards may differ in size.
// - For 16-bit dtypes the ranks reduce f32 at once: a part may exceed the range
//   of f16 although the result does not, and the result is rounded once.
//
// \param count number of elements that a mean is over; else nullopt.
// \param reductions those of the result, if they do not stay pending.
LocalProgram ReductionOfShards(std::optional<int64_t> count,
                               std::optional<PreparedPlan> reductions) {
  return [count, reductions = std::move(reductions)](
             const Op& op, TensorSpan locals, const DeviceMesh& mesh) {
    const auto& whole = static_cast<const ReductionOp&>(op);
    const DType wide = WideOf(whole.out_dtype);
    TensorList part =
        ReductionOp(count.has_value() ? ReduceKind::kSum : whole.kind,
                    whole.dims, whole.keepdim, wide)
            .Forward(locals);
    if (count.has_value()) {
      ScaleInPlaceOp(1.0 / static_cast<double>(*count)).Forward(part);
    }
    if (reductions.has_value()) {
      part[0] = DTensorRuntime::Current().Redistribute(
          *reductions, part[0], mesh, CommOrigin::Op(op.info().name));
    }
    return whole.out_dtype == wide ? part
                                   : CastOp(whole.out_dtype).Forward(part);
  };
}

// Returns whether a reduction gives numbers that are rounded to the result's
// dtype.
bool Rounds(ReduceKind kind) {
  return kind == ReduceKind::kSum || kind == ReduceKind::kMean ||
         kind == ReduceKind::kProduct || kind == ReduceKind::kSumOfSquares;
}

// The index of the largest or smallest element of a split dim. Each rank finds
// its candidate, and the ranks exchange these.
class ShardedArg {
 public:
  /// \param parts of the dim, by rank along `axes`.
  /// \param begin of this rank's part.
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

  TensorList operator()(const Op& /*op*/, TensorSpan locals,
                        const DeviceMesh& mesh) const {
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

    // Returns indices[best], as a sum of one term.
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
  // A maximum of maxima is the maximum; the same holds for minima and products.
  if (pending != ReduceOp::kSum && AllPending(call.inputs[0].layout, pending)) {
    rule.linearity = Linearity::kMove;
  }
  DimFactors dims;
  FactorRule::Output output;
  int64_t count = 1;
  for (int d = 0; d < static_cast<int>(sizes.size()); ++d) {
    const bool reduced =
        std::find(op.dims.begin(), op.dims.end(), d) != op.dims.end();
    if (!reduced) {
      dims.push_back({rule.Add(sizes[d])});
      output.dims.push_back(dims.back());
      output.sizes.push_back(sizes[d]);
    } else {
      dims.push_back(whole ? DimFactor{}
                           : DimFactor{rule.Add(sizes[d], pending)});
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
  const bool mean = op.kind == ReduceKind::kMean;
  RuleResult::Output& out = result.outputs[0];
  std::optional<PreparedPlan> reductions;
  if (Rounds(op.kind) && SizeOf(op.out_dtype) == 2 && out.layout.is_partial()) {
    reductions = PlanReductions(call, out.layout, out.sizes, kFloat32);
    out.layout = out.layout.WithoutPartials();
  }
  if (reductions.has_value() || (mean && split)) {
    result.program =
        ReductionOfShards(mean ? std::optional<int64_t>(count) : std::nullopt,
                          std::move(reductions));
  }
  const bool arg =
      op.kind == ReduceKind::kArgMax || op.kind == ReduceKind::kArgMin;
  if (arg && split) {
    const int dim = static_cast<int>(op.dims[0]);
    const Layout& layout = result.inputs[0];
    const absl::Span<const int> axes = layout.axes_of_dim(dim);
    result.program =
        ShardedArg(op, axes, layout.DimIntervals(dim, sizes[dim]),
                   layout.DimInterval(dim, sizes[dim], call.coordinate).begin);
    for (int axis : axes) {
      result.outputs[0].layout = result.outputs[0].layout.WithReplicate(axis);
    }
  }
  return result;
}

// The reductions are the op's purpose, not an implicit redistribution.
RuleResult ReducePartialRule(const RuleCall& call) {
  const RuleInput& input = call.inputs[0];
  RuleResult result;
  result.inputs = {input.layout};
  result.outputs.push_back({input.layout.WithoutPartials(), input.sizes});
  if (input.layout.is_partial()) {
    result.program =
        [plan = PlanReductions(call, input.layout, input.sizes, input.dtype)](
            const Op& op, TensorSpan locals,
            const DeviceMesh& mesh) -> TensorList {
      return {DTensorRuntime::Current().Redistribute(
          plan, locals[0], mesh, CommOrigin::Op(op.info().name))};
    };
  }
  return result;
}

}  // namespace

void AddReductionRules(OpRuleTable& table) {
  for (ReduceKind kind : kReduceKinds) {
    table[&ReductionOp::InfoOf(kind)] = {ReductionRule};
  }
  table[&ReducePartialOp::kInfo] = {ReducePartialRule};
}

}  // namespace crosshatch
