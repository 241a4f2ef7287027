// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "crosshatch/base/check.h"
#include "crosshatch/dtensor/layout/view_layout.h"
#include "crosshatch/dtensor/redistribution/plan.h"
#include "crosshatch/dtensor/rules/op_rule.h"
#include "crosshatch/dtensor/rules/op_rules.h"
#include "crosshatch/dtensor/rules/split_dim.h"
#include "crosshatch/tensor/ops/cat.h"
#include "crosshatch/tensor/ops/view.h"

namespace crosshatch {
namespace {

// Returns the layout of a view's input without splits of dims of one element,
// which only one of the ranks holds: of one of these dims if that is
// sufficient, otherwise of all. Selecting one element of several does the same.
Layout WithSinglesWhole(const RuleInput& input, ShapeView out) {
  Layout all = input.layout;
  for (int d = 0; d < input.layout.ndim(); ++d) {
    if (input.sizes[d] != 1 || !input.layout.is_sharded(d)) continue;
    const Layout one = input.layout.WithDim(d, {});
    if (ViewLayout(one, input.sizes, out).has_value()) return one;
    all = all.WithDim(d, {});
  }
  return all;
}

// Returns the layout of a view's input that takes the fewest bytes to reach and
// for which the result has a layout. Some axes keep their split, others
// replicate, or one splits another dim of the result.
Layout CheapestForView(const RuleInput& input, ShapeView out) {
  const RedistributeCostModel model;
  Layout best = input.layout;
  int64_t least = std::numeric_limits<int64_t>::max();
  const auto offer = [&](const Layout& layout) {
    const absl::StatusOr<RedistributePlan> plan = PlanRedistribute(
        input.layout, layout, input.sizes, SizeOf(input.dtype));
    CH_CHECK_OK(plan.status());
    const int64_t weight = model.Weight(plan->cost);
    if (weight >= least) return;
    least = weight;
    best = layout;
  };
  absl::InlinedVector<int, 4> axes;
  for (int axis = 0; axis < input.layout.mesh().ndim(); ++axis) {
    if (input.layout.state_of_axis(axis).is_shard()) axes.push_back(axis);
  }
  for (unsigned dropped = 1; dropped < 1u << axes.size(); ++dropped) {
    const auto is_dropped = [&](size_t i) { return (dropped >> i & 1) != 0; };
    Layout fewer = input.layout;
    for (size_t i = 0; i < axes.size(); ++i) {
      if (is_dropped(i)) fewer = fewer.WithReplicate(axes[i]);
    }
    const std::optional<Layout> viewed = ViewLayout(fewer, input.sizes, out);
    if (!viewed.has_value()) continue;
    offer(fewer);
    for (size_t i = 0; i < axes.size(); ++i) {
      for (int d = 0; is_dropped(i) && d < viewed->ndim(); ++d) {
        if (viewed->is_sharded(d)) continue;
        const std::optional<Layout> moved = ViewLayout(
            viewed->WithDim(d, {.axes = {axes[i]}}), out, input.sizes);
        if (moved.has_value()) offer(*moved);
      }
    }
  }
  return best;
}

RuleResult ViewRule(const RuleCall& call) {
  const auto& op = static_cast<const ViewOp&>(call.op);
  const RuleInput& input = call.inputs[0];
  CH_CHECK_EQ(NumElements(input.sizes), NumElements(op.sizes))
      << DescribeCall(call) << ": the view has sizes " << ToString(op.sizes);
  Layout taken = input.layout;
  std::optional<Layout> layout = ViewLayout(taken, input.sizes, op.sizes);
  if (!layout.has_value()) {
    taken = WithSinglesWhole(input, op.sizes);
    layout = ViewLayout(taken, input.sizes, op.sizes);
  }
  if (!layout.has_value() && op.redistributes) {
    taken = CheapestForView(input, op.sizes);
    layout = ViewLayout(taken, input.sizes, op.sizes);
  }
  CH_CHECK(layout.has_value())
      << DescribeCall(call) << ": no layout of a tensor of sizes "
      << ToString(op.sizes) << " has the same elements on every rank: the "
      << "split cuts through what the view keeps together. Where it is the "
      << "output of an nn::Linear, name the width that stays whole as "
      << "ColwiseOptions::unit (the input's: RowwiseOptions::unit): a head's, "
         "or of "
      << "merged projections that SplitUnits takes apart the sum of the units "
      << "given to it; take merged projections apart by Split or SplitUnits "
      << "before heads are viewed. Where a GroupNorm takes channels apart, "
      << "split them by whole groups: by a unit of the channels of one "
      << "(DimSharding::unit); or split the batch alone. Else redistribute the "
      << "dims that are merged or split to Replicate, which gathers them";
  RuleResult result;
  result.inputs = {std::move(taken)};
  // May copy, because the user does not control the strides of a shard: it may
  // be a part of what the rank held before.
  result.local_op = std::make_unique<ViewOp>(
      layout->LocalShape(op.sizes, call.coordinate), /*may_copy=*/true);
  result.outputs.push_back({*std::move(layout), op.sizes});
  return result;
}

// Returns the rule of an op that moves values and changes the size of one dim,
// which is not split; nullopt: no dim.
FactorRule MoveRule(const RuleCall& call, std::optional<int> dim,
                    int64_t size) {
  FactorRule rule;
  rule.linearity = Linearity::kMove;
  FactorRule::Output output = {rule.AddAll(call.inputs[0].sizes),
                               call.inputs[0].sizes};
  if (dim.has_value()) {
    output.dims[*dim] = {};
    output.sizes[*dim] = size;
  }
  rule.inputs.assign(call.inputs.size(), output.dims);
  rule.outputs = {std::move(output)};
  return rule;
}

RuleResult PermuteRule(const RuleCall& call) {
  const auto& op = static_cast<const PermuteOp&>(call.op);
  const Shape& sizes = call.inputs[0].sizes;
  FactorRule rule;
  rule.linearity = Linearity::kMove;
  const DimFactors dims = rule.AddAll(sizes);
  FactorRule::Output output;
  for (int64_t d : op.dims) {
    output.dims.push_back(dims[d]);
    output.sizes.push_back(sizes[d]);
  }
  rule.inputs = {dims};
  rule.outputs = {std::move(output)};
  return SolveFactors(call, rule);
}

// Returns the layouts in which the dim keeps its axes and their unit. The
// result has `size` elements of it. Its first element is element `start` of the
// input, which may be negative. Ranks receive from each other what they lack.
RuleResult KeepSplit(const RuleCall& call, int dim, int64_t start,
                     int64_t size) {
  const RuleInput& input = call.inputs[0];
  SplitDim has(call, input.layout, dim, input.sizes[dim]);
  PartsMove move = {.dim = dim,
                    .axes = has.axes,
                    .has = std::move(has.parts),
                    .here = has.here};
  for (const Interval& part : input.layout.DimIntervals(dim, size)) {
    move.wants.push_back({part.begin + start, part.end + start});
  }
  RuleResult result;
  result.inputs = {input.layout};
  Shape sizes = input.sizes;
  sizes[dim] = size;
  result.outputs.push_back({input.layout, std::move(sizes)});
  result.program = [move = std::move(move)](
                       const Op& op, TensorSpan locals,
                       const DeviceMesh& mesh) -> TensorList {
    return {MoveParts(locals[0], move, mesh, op.info().name)};
  };
  return result;
}

// Returns whether a dim is split and several ranks have elements of it.
// Otherwise the split may be incidental, like that of a view's dims of one
// element.
bool SeveralHaveSome(const RuleInput& input, int dim) {
  if (!input.layout.is_sharded(dim)) return false;
  const std::vector<Interval> parts =
      input.layout.DimIntervals(dim, input.sizes[dim]);
  return std::count_if(parts.begin(), parts.end(), [](const Interval& part) {
           return part.size() > 0;
         }) > 1;
}

RuleResult SliceRule(const RuleCall& call) {
  const auto& op = static_cast<const SliceOp&>(call.op);
  const Shape& sizes = call.inputs[0].sizes;
  const bool all = op.start == 0 && op.end == sizes[op.dim];
  if (!all && call.inputs[0].layout.is_sharded(op.dim)) {
    return KeepSplit(call, op.dim, op.start, op.end - op.start);
  }
  RuleResult result = SolveFactors(
      call, MoveRule(call, all ? std::nullopt : std::optional<int>(op.dim),
                     op.end - op.start));
  if (all) {
    const int64_t here =
        result.outputs[0].layout.LocalShape(sizes, call.coordinate)[op.dim];
    result.local_op = std::make_unique<SliceOp>(op.dim, 0, here);
  }
  return result;
}

RuleResult ExpandRule(const RuleCall& call) {
  const auto& op = static_cast<const ExpandOp&>(call.op);
  const Shape& sizes = call.inputs[0].sizes;
  const size_t added = op.sizes.size() - sizes.size();
  FactorRule rule;
  rule.linearity = Linearity::kMove;
  DimFactors dims;
  FactorRule::Output output = {DimFactors(added), op.sizes};
  for (size_t d = 0; d < sizes.size(); ++d) {
    const bool repeats = sizes[d] != op.sizes[added + d];
    dims.push_back(repeats ? DimFactor{} : DimFactor{rule.Add(sizes[d])});
    output.dims.push_back(dims.back());
  }
  rule.inputs = {std::move(dims)};
  rule.outputs = {std::move(output)};
  RuleResult result = SolveFactors(call, rule);
  result.local_op = std::make_unique<ExpandOp>(
      result.outputs[0].layout.LocalShape(op.sizes, call.coordinate));
  return result;
}

RuleResult CatRule(const RuleCall& call) {
  const auto& op = static_cast<const CatOp&>(call.op);
  int64_t joined = 0;
  for (const RuleInput& input : call.inputs) {
    CH_CHECK_EQ(input.sizes.size(), call.inputs[0].sizes.size())
        << DescribeCall(call);
    joined += input.sizes[op.dim];
  }
  return SolveFactors(call, MoveRule(call, op.dim, joined));
}

RuleResult PadRule(const RuleCall& call) {
  const auto& op = static_cast<const PadOp&>(call.op);
  const int64_t size = op.before + call.inputs[0].sizes[op.dim] + op.after;
  if (SeveralHaveSome(call.inputs[0], op.dim)) {
    return KeepSplit(call, op.dim, -op.before, size);
  }
  return SolveFactors(call, MoveRule(call, op.dim, size));
}

}  // namespace

void AddViewRules(OpRuleTable& table) {
  table[&ViewOp::kInfo] = {ViewRule};
  table[&PermuteOp::kInfo] = {PermuteRule};
  table[&SliceOp::kInfo] = {SliceRule};
  table[&ExpandOp::kInfo] = {ExpandRule};
  table[&CatOp::kInfo] = {CatRule};
  table[&PadOp::kInfo] = {PadRule};
}

}  // namespace crosshatch
