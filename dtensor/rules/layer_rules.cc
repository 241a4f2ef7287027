// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <utility>
#include <vector>

#include "crosshatch/base/check.h"
#include "crosshatch/dtensor/rules/op_rule.h"
#include "crosshatch/dtensor/rules/op_rules.h"
#include "crosshatch/tensor/ops/attention.h"
#include "crosshatch/tensor/ops/embedding.h"
#include "crosshatch/tensor/ops/norm.h"

namespace crosshatch {
namespace {

// All gradients are linear in that of the result, so sums may stay pending if
// there is only the gradient of x. With the gradient of a weight or a bias
// there would be two sums to reduce instead of one.
RuleResult SolveNormBackward(const RuleCall& call, FactorRule rule, bool bare) {
  if (bare) {
    rule.linearity = Linearity::kMultilinear;
    rule.linear_inputs = kFirstInput;
  }
  return SolveFactors(call, rule);
}

// If rows are split, each rank has the sum over its own: the gradient of the
// weight is partial.
RuleResult RmsNormBackwardRule(const RuleCall& call) {
  return SolveNormBackward(call, Einsum(call, "...C,...C,C,...->...C,C"),
                           !call.inputs[2].defined);
}

RuleResult LayerNormBackwardRule(const RuleCall& call) {
  const auto& op = static_cast<const LayerNormBackwardOp&>(call.op);
  return SolveNormBackward(call, Einsum(call, "...C,...C,C,...,...->...C,C,C"),
                           !call.inputs[2].defined && !op.want_dbias);
}

// Tables of cosines and sines are [time, width / 2], or one for each batch. The
// pairs consist of distant elements, so the width is not split.
RuleResult RopeRule(const RuleCall& call) {
  const bool by_batch = call.inputs[1].sizes.size() == 3;
  FactorRule rule =
      Einsum(call, by_batch ? "blnH,bl_,bl_->blnH" : "blnH,l_,l_->blnH");
  rule.linearity = Linearity::kMultilinear;
  rule.linear_inputs = kFirstInput;
  return SolveFactors(call, rule);
}

// Returns the number of elements of `dim` before this rank's shard.
int64_t OffsetHere(const RuleCall& call, const Layout& layout, int dim,
                   int64_t size) {
  return layout.DimInterval(dim, size, call.coordinate).begin;
}

// Each rank looks up the rows that it holds and has zeros for the others, so
// split rows give a pending sum.
RuleResult EmbeddingRule(const RuleCall& call) {
  const auto& op = static_cast<const EmbeddingOp&>(call.op);
  FactorRule rule = Einsum(call, "...,vw->...w");
  rule.linearity = Linearity::kMultilinear;
  rule.linear_inputs = kFirstInput << 1;
  RuleResult result = SolveFactors(call, rule);
  if (result.inputs[1].is_sharded(0)) {
    result.local_op = std::make_unique<EmbeddingOp>(
        op.first_row +
            OffsetHere(call, result.inputs[1], 0, call.inputs[1].sizes[0]),
        op.bound);
  }
  return result;
}

RuleResult EmbeddingGradRule(const RuleCall& call) {
  const auto& op = static_cast<const EmbeddingGradOp&>(call.op);
  FactorRule rule = Einsum(call, "...,...w->vw", {op.num_rows});
  rule.linearity = Linearity::kMultilinear;
  rule.linear_inputs = kFirstInput << 1;
  return SolveFactors(call, rule);
}

// The destination's rows determine which ids each rank takes. Ids must not be
// split, because the destination has no room for partial sums.
RuleResult EmbeddingGradIntoRule(const RuleCall& call) {
  const auto& op = static_cast<const EmbeddingGradIntoOp&>(call.op);
  FactorRule rule = Einsum(call, "vw,...,...w->vw");
  rule.fixed_input = 0;
  const size_t ids = rule.inputs[1].size();
  for (size_t d = 0; d < ids; ++d) rule.inputs[1][d] = rule.inputs[2][d] = {};
  RuleResult result = SolveFactors(call, rule);
  if (result.inputs[0].is_sharded(0)) {
    result.local_op = std::make_unique<EmbeddingGradIntoOp>(
        op.first_row +
            OffsetHere(call, result.inputs[0], 0, call.inputs[0].sizes[0]),
        op.accumulate);
  }
  return result;
}

}  // namespace

void AddLayerRules(OpRuleTable& table) {
  table[&RmsNormOp::kInfo] = {EinsumRule("...C,C->...C,...")};
  table[&RmsNormBackwardOp::kInfo] = {RmsNormBackwardRule};
  table[&LayerNormOp::kInfo] = {EinsumRule("...C,C,C->...C,...,...")};
  table[&LayerNormBackwardOp::kInfo] = {LayerNormBackwardRule};
  table[&SoftmaxOp::kInfo] = {EinsumRule("...C->...C")};
  table[&SoftmaxBackwardOp::kInfo] = {
      EinsumRule("...C,...C->...C", Linearity::kMultilinear, kFirstInput)};
  // Tables of cosines and sines are constants.
  table[&RopeOp::kInfo] = {RopeRule, kFirstInput << 1 | kFirstInput << 2};
  // Ids have no gradient.
  table[&EmbeddingOp::kInfo] = {EmbeddingRule, kFirstInput};
  table[&EmbeddingGradOp::kInfo] = {EmbeddingGradRule, kFirstInput};
  table[&EmbeddingGradIntoOp::kInfo] = {EmbeddingGradIntoRule,
                                        kFirstInput << 1};
}

}  // namespace crosshatch
