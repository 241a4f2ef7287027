// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <string>
#include <utility>

#include "crosshatch/base/check.h"
#include "crosshatch/dtensor/layout/layout_pair.h"
#include "crosshatch/dtensor/redistribution/runtime.h"
#include "crosshatch/dtensor/rules/op_rule.h"
#include "crosshatch/dtensor/rules/op_rules.h"
#include "crosshatch/tensor/ops/float8.h"
#include "crosshatch/tensor/ops/in_place.h"
#include "crosshatch/tensor/ops/matmul.h"

namespace crosshatch {
namespace {

FactorRule MatMulFactors(const RuleCall& call, const MatMulSpec& spec) {
  FactorRule rule =
      Einsum(call, absl::StrCat("...", spec.transpose_a ? "ki" : "ik", ",...",
                                spec.transpose_b ? "nk" : "kn", "->",
                                spec.sum_batch ? "in" : "...in"));
  rule.outputs[0].sizes =
      MatMulSizes(call.inputs[0].sizes, call.inputs[1].sizes, spec);
  rule.linearity = Linearity::kMultilinear;
  return rule;
}

RuleResult MatMulRule(const RuleCall& call) {
  return SolveFactors(
      call, MatMulFactors(call, static_cast<const MatMulOp&>(call.op).spec));
}

// Returns a program for a product whose layout differs from its destination's:
// it is computed in a temporary, which is redistributed and written.
LocalProgram MatMulThenWrite(const Layout& from, const Layout& to,
                             const Shape& sizes) {
  return [=](const Op& op, TensorSpan locals, const DeviceMesh& mesh) {
    const auto& into = static_cast<const MatMulIntoOp&>(op);
    Tensor product = MatMulOp(into.spec).Forward(locals.subspan(1))[0];
    DTensorRuntime& runtime = DTensorRuntime::Current();
    // The sum of a gradient over ranks that all use the leaf is required by the
    // leaf's layout.
    const CommOrigin origin = IsBeforeReduction(from, to)
                                  ? CommOrigin::Op(op.info().name)
                                  : CommOrigin::Implicit(op.info().name);
    const absl::StatusOr<const PreparedPlan*> plan =
        runtime.Plan(runtime.Intern(from), runtime.Intern(to), sizes,
                     SizeOf(product.dtype()));
    CH_CHECK_OK(plan.status());
    product = runtime.Redistribute(**plan, product, mesh, origin);
    if (into.accumulate) return AddInPlaceOp(1).Forward({locals[0], product});
    return CopyInPlaceOp().Forward({locals[0], product});
  };
}

RuleResult MatMulIntoRule(const RuleCall& call) {
  const auto& op = static_cast<const MatMulIntoOp&>(call.op);
  const RuleInput& dst = call.inputs[0];
  for (const AxisState& state : dst.layout.axis_states()) {
    CH_CHECK(!op.accumulate || !state.is_partial() ||
             state.op != ReduceOp::kProduct)
        << DescribeCall(call)
        << ": a product is added to a tensor whose factors are pending; "
           "redistribute it first";
  }
  const RuleCall product = {call.op, call.inputs.subspan(1), call.mesh,
                            call.coordinate};
  RuleResult result = SolveFactors(product, MatMulFactors(product, op.spec));
  RuleResult::Output& made = result.outputs[0];
  CH_CHECK(made.sizes == dst.sizes)
      << DescribeCall(call) << ": the product has sizes "
      << ToString(made.sizes);
  if (!SameShards(made.layout, dst.layout, made.sizes)) {
    result.program = MatMulThenWrite(made.layout, dst.layout, made.sizes);
  }
  made.layout = dst.layout;
  result.inputs.insert(result.inputs.begin(), dst.layout);
  return result;
}

// Groups and their rows are not split, because the op's attributes state which
// rows belong to which group. Experts that are distributed over ranks are plain
// tensors (nn/layers/mixture_of_experts.h).
RuleResult GroupedMatMulRule(const RuleCall& call) {
  const auto& op = static_cast<const GroupedMatMulOp&>(call.op);
  FactorRule rule = Einsum(call, op.transpose_w ? "Rk,Gnk->Rn" : "Rk,Gkn->Rn");
  rule.outputs[0].sizes = GroupedMatMulSizes(
      call.inputs[0].sizes, call.inputs[1].sizes, op.offsets, op.transpose_w);
  rule.linearity = Linearity::kMultilinear;
  return SolveFactors(call, rule);
}

RuleResult GroupedOuterRule(const RuleCall& call) {
  const auto& op = static_cast<const GroupedOuterOp&>(call.op);
  const Shape out =
      GroupedOuterSizes(call.inputs[0].sizes, call.inputs[1].sizes, op.offsets);
  FactorRule rule = Einsum(call, "Rm,Rn->_mn", {out[0]});
  rule.linearity = Linearity::kMultilinear;
  return SolveFactors(call, rule);
}

RuleResult Float8ScaleRule(const RuleCall& call) {
  FactorRule rule = PointwiseFactors(call, Linearity::kNone);
  rule.outputs.push_back(rule.outputs[0]);
  return SolveFactors(call, rule);
}

RuleResult Float8CastRule(const RuleCall& call) {
  return SolveFactors(call, PointwiseFactors(call, Linearity::kNone));
}

// The scales of a split operand are those of the whole one, so partial products
// add up.
RuleResult ScaledMatMulRule(const RuleCall& call) {
  const MatMulSpec& spec = static_cast<const ScaledMatMulOp&>(call.op).spec;
  const bool by_row = !call.inputs[2].sizes.empty();
  const auto scale = [by_row](bool k_is_first, const char* other) {
    return !by_row ? std::string()
                   : absl::StrCat("...", k_is_first ? "_" : other,
                                  k_is_first ? other : "_");
  };
  FactorRule rule =
      Einsum(call, absl::StrCat("...", spec.transpose_a ? "ki" : "ik", ",...",
                                spec.transpose_b ? "nk" : "kn", ",",
                                scale(spec.transpose_a, "i"), ",",
                                scale(!spec.transpose_b, "n"), "->",
                                spec.sum_batch ? "in" : "...in"));
  rule.outputs[0].sizes =
      MatMulSizes(call.inputs[0].sizes, call.inputs[1].sizes, spec);
  return SolveFactors(call, rule);
}

}  // namespace

void AddMatMulRules(OpRuleTable& table) {
  table[&GroupedMatMulOp::kInfo] = {GroupedMatMulRule};
  table[&GroupedOuterOp::kInfo] = {GroupedOuterRule};
  table[&MatMulOp::kInfo] = {MatMulRule};
  table[&MatMulIntoOp::kInfo] = {MatMulIntoRule};
  table[&Float8ScaleOp::kInfo] = {Float8ScaleRule};
  table[&Float8CastOp::kInfo] = {Float8CastRule};
  table[&ScaledMatMulOp::kInfo] = {ScaledMatMulRule};
}

}  // namespace crosshatch
