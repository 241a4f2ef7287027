// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <utility>

#include "crosshatch/base/check.h"
#include "crosshatch/dtensor/rules/op_rule.h"
#include "crosshatch/dtensor/rules/op_rules.h"
#include "crosshatch/tensor/ops/dropout.h"
#include "crosshatch/tensor/ops/index.h"

namespace crosshatch {
namespace {

// The dims of an op that indexes along one of them. Each other dim is one
// factor of all operands. That dim has two factors: positions in the index,
// gathered and scattered tensors, and elements of the indexed tensor.
struct IndexFactors {
  /// \param element_is_split whether elements may be split.
  IndexFactors(const RuleCall& call, const IndexedBy& by, ShapeView index,
               int64_t named, bool element_is_split = true) {
    CH_CHECK(by.dim < static_cast<int>(index.size())) << DescribeCall(call);
    places = rule.AddAll(index);
    elements = places;
    const auto dim = static_cast<size_t>(by.dim);
    elements[dim] = {};
    if (element_is_split) elements[dim] = {rule.Add(named)};
    whole_places = places;
    whole_places[dim] = {};
  }

  FactorRule rule;
  DimFactors places;
  DimFactors whole_places;  // Positions are not split.
  DimFactors elements;
};

// Checks that the named tensor's sizes equal the index's except for the dim.
void CheckSizes(const RuleCall& call, const IndexedBy& by, ShapeView named,
                ShapeView index) {
  bool fits = named.size() == index.size();
  for (size_t d = 0; fits && d < named.size(); ++d) {
    fits = static_cast<int>(d) == by.dim || named[d] == index[d];
  }
  CH_CHECK(fits) << DescribeCall(call) << ": sizes must be equal but for dim "
                 << by.dim;
}

// Returns `by` for this rank's shard of the indexed tensor, in `layout`.
IndexedBy Here(const RuleCall& call, const IndexedBy& by, const Layout& layout,
               int64_t size) {
  IndexedBy here = by;
  here.first += layout.DimInterval(by.dim, size, call.coordinate).begin;
  return here;
}

Shape WithDim(ShapeView sizes, const IndexedBy& by, int64_t size) {
  Shape result(sizes.begin(), sizes.end());
  result[static_cast<size_t>(by.dim)] = size;
  return result;
}

// A rank gathers what it holds and has zeros for the rest. If the dim is split,
// the result is a pending sum.
RuleResult GatherRule(const RuleCall& call) {
  const auto& op = static_cast<const GatherOp&>(call.op);
  const RuleInput& a = call.inputs[0];
  const Shape& index = call.inputs[1].sizes;
  CheckSizes(call, op.by, a.sizes, index);
  const int64_t size = a.sizes[static_cast<size_t>(op.by.dim)];
  // Booleans cannot be summed.
  IndexFactors factors(call, op.by, index, size, a.dtype != kBool);
  factors.rule.linearity = Linearity::kMultilinear;
  factors.rule.linear_inputs = kFirstInput;
  factors.rule.inputs = {factors.elements, factors.places};
  factors.rule.outputs = {{factors.places, index}};
  RuleResult result = SolveFactors(call, factors.rule);
  result.local_op = std::make_unique<GatherOp>(
      Here(call, op.by, result.inputs[0], size), op.selects);
  return result;
}

RuleResult GatherGradRule(const RuleCall& call) {
  const auto& op = static_cast<const GatherGradOp&>(call.op);
  const Shape& index = call.inputs[0].sizes;
  IndexFactors factors(call, op.by, index, op.count);
  factors.rule.linearity = Linearity::kMultilinear;
  factors.rule.linear_inputs = kFirstInput << 1;
  factors.rule.inputs = {factors.places, factors.places};
  factors.rule.outputs = {{factors.elements, WithDim(index, op.by, op.count)}};
  return SolveFactors(call, factors.rule);
}

// (base, index, src) -> as base. Every rank that holds a part of the dim needs
// all positions along it, so they are not split.
RuleResult SolveScatter(const RuleCall& call, const IndexedBy& by) {
  const Shape& base = call.inputs[0].sizes;
  const Shape& index = call.inputs[1].sizes;
  CheckSizes(call, by, base, index);
  CH_CHECK(!call.inputs[2].defined || call.inputs[2].sizes == index)
      << DescribeCall(call) << ": sizes of indices and source must be equal";
  IndexFactors factors(call, by, index, base[static_cast<size_t>(by.dim)]);
  factors.rule.inputs = {
      factors.elements, factors.whole_places,
      call.inputs[2].defined ? factors.whole_places : DimFactors{}};
  factors.rule.outputs = {{factors.elements, base}};
  return SolveFactors(call, factors.rule);
}

RuleResult ScatterAddRule(const RuleCall& call) {
  const auto& op = static_cast<const ScatterAddOp&>(call.op);
  RuleResult result = SolveScatter(call, op.by);
  result.local_op = std::make_unique<ScatterAddOp>(
      Here(call, op.by, result.inputs[0], op.by.bound));
  return result;
}

RuleResult ScatterRule(const RuleCall& call) {
  const auto& op = static_cast<const ScatterOp&>(call.op);
  RuleResult result = SolveScatter(call, op.by);
  result.local_op = std::make_unique<ScatterOp>(
      Here(call, op.by, result.inputs[0], op.by.bound), op.value);
  return result;
}

// (index, grad) -> as index; a pending sum if the dim is split.
RuleResult ScatterGradRule(const RuleCall& call) {
  const auto& op = static_cast<const ScatterGradOp&>(call.op);
  const Shape& index = call.inputs[0].sizes;
  const Shape& grad = call.inputs[1].sizes;
  CheckSizes(call, op.by, grad, index);
  IndexFactors factors(call, op.by, index,
                       grad[static_cast<size_t>(op.by.dim)]);
  // The last of equal indices is known only if the whole dim is local.
  factors.rule.linearity = Linearity::kMultilinear;
  factors.rule.linear_inputs = kFirstInput << 1;
  factors.rule.inputs = {factors.whole_places, factors.elements};
  factors.rule.outputs = {{factors.whole_places, index}};
  RuleResult result = SolveFactors(call, factors.rule);
  result.local_op = std::make_unique<ScatterGradOp>(
      Here(call, op.by, result.inputs[1], op.by.bound));
  return result;
}

RuleResult DropoutRule(const RuleCall& call) {
  RuleResult result =
      SolveFactors(call, PointwiseFactors(call, Linearity::kMultilinear));
  const Shape& sizes = call.inputs[0].sizes;
  const Box here = result.inputs[0].LocalBox(sizes, call.coordinate);
  result.program = [=](const Op& op, TensorSpan locals,
                       const DeviceMesh&) -> TensorList {
    return {static_cast<const DropoutOp&>(op).ForwardPart(locals[0],
                                                          here.offsets, sizes)};
  };
  return result;
}

}  // namespace

void AddIndexRules(OpRuleTable& table) {
  // Indices have no gradient.
  table[&GatherOp::kInfo] = {GatherRule, kFirstInput << 1};
  table[&GatherGradOp::kInfo] = {GatherGradRule, kFirstInput};
  table[&ScatterAddOp::kInfo] = {ScatterAddRule, kFirstInput << 1};
  table[&ScatterOp::kInfo] = {ScatterRule, kFirstInput << 1};
  table[&ScatterGradOp::kInfo] = {ScatterGradRule, kFirstInput};
  table[&DropoutOp::kInfo] = {DropoutRule};
}

}  // namespace crosshatch
