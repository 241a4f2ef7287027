// SPDX-License-Identifier: Apache-2.0
// Rules of image windows: images and channels may be split.
#include "crosshatch/dtensor/rules/op_rule.h"
#include "crosshatch/dtensor/rules/op_rules.h"
#include "crosshatch/tensor/ops/conv.h"

namespace crosshatch {
namespace {

RuleResult UnfoldRule(const RuleCall& call) {
  const auto& op = static_cast<const UnfoldOp&>(call.op);
  FactorRule rule = Einsum(
      call, "bc__->b__c__",
      {op.rows.windows, op.cols.windows, op.rows.kernel, op.cols.kernel});
  rule.linearity = Linearity::kMultilinear;
  return SolveFactors(call, rule);
}

RuleResult FoldRule(const RuleCall& call) {
  const auto& op = static_cast<const FoldOp&>(call.op);
  FactorRule rule = Einsum(call, "b__c__->bc__", {op.rows.size, op.cols.size});
  rule.linearity = Linearity::kMultilinear;
  return SolveFactors(call, rule);
}

}  // namespace

void AddWindowRules(OpRuleTable& table) {
  table[&UnfoldOp::kInfo] = {UnfoldRule};
  table[&FoldOp::kInfo] = {FoldRule};
}

}  // namespace crosshatch
