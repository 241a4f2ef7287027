// SPDX-License-Identifier: Apache-2.0
// Rules of image windows: images and channels may be split.
#include <cstdint>

#include "crosshatch/dtensor/rules/factor_rule.h"
#include "crosshatch/dtensor/rules/op_rules.h"
#include "crosshatch/tensor/ops/windows.h"

namespace crosshatch {
namespace {

RuleResult UnfoldRule(const RuleCall& call) {
  const auto& op = static_cast<const UnfoldOp&>(call.op);
  const Shape& sizes = call.inputs[0].sizes;
  FactorRule rule;
  rule.linearity = Linearity::kMultilinear;
  const DimFactor images = {rule.Add(sizes[0]), 1};
  const DimFactor channels = {rule.Add(sizes[1]), 1};
  rule.inputs = {{images, channels, {}, {}}};
  rule.outputs = {{{images, {}, {}, channels, {}, {}},
                   {sizes[0], op.rows.windows, op.cols.windows, sizes[1],
                    op.rows.kernel, op.cols.kernel}}};
  return SolveFactors(call, rule);
}

RuleResult FoldRule(const RuleCall& call) {
  const auto& op = static_cast<const FoldOp&>(call.op);
  const Shape& sizes = call.inputs[0].sizes;
  FactorRule rule;
  rule.linearity = Linearity::kMultilinear;
  const DimFactor images = {rule.Add(sizes[0]), 1};
  const DimFactor channels = {rule.Add(sizes[3]), 1};
  rule.inputs = {{images, {}, {}, channels, {}, {}}};
  rule.outputs = {{{images, channels, {}, {}},
                   {sizes[0], sizes[3], op.rows.size, op.cols.size}}};
  return SolveFactors(call, rule);
}

}  // namespace

void AddWindowRules(OpRuleTable& table) {
  table[&UnfoldOp::kInfo] = {UnfoldRule};
  table[&FoldOp::kInfo] = {FoldRule};
}

}  // namespace crosshatch
