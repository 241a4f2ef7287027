// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>
#include <utility>

#include "crosshatch/dtensor/factor_rule.h"
#include "crosshatch/dtensor/op_rules.h"
#include "crosshatch/tensor/ops/cast.h"
#include "crosshatch/tensor/ops/in_place.h"
#include "crosshatch/tensor/ops/reduce.h"

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

RuleResult ReductionRule(const RuleCall& call) {
  const auto& op = static_cast<const ReductionOp&>(call.op);
  const Shape& sizes = call.inputs[0].sizes;
  FactorRule rule;
  ReduceOp pending = ReduceOp::kSum;
  bool whole = false;
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
      whole = true;
      break;
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
  return result;
}

}  // namespace

void AddReductionRules(OpRuleTable& table) {
  for (ReduceKind kind : kReduceKinds) {
    table[&ReductionOp::InfoOf(kind)] = {ReductionRule};
  }
}

}  // namespace crosshatch
