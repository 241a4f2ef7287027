// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <utility>
#include <vector>

#include "crosshatch/base/check.h"
#include "crosshatch/dtensor/rules/factor_rule.h"
#include "crosshatch/dtensor/rules/op_rules.h"
#include "crosshatch/tensor/ops/embedding.h"
#include "crosshatch/tensor/ops/norm.h"
#include "crosshatch/tensor/ops/rope.h"

namespace crosshatch {
namespace {

// Ops on rows: the leading dims are independent, the last dim is not split.
struct RowFactors {
  explicit RowFactors(const RuleCall& call, const RuleInput& x) {
    CH_CHECK(!x.sizes.empty()) << DescribeCall(call);
    sizes = x.sizes;
    lead_sizes = Shape(sizes.begin(), sizes.end() - 1);
    for (int64_t size : lead_sizes) lead.push_back({rule.Add(size), 1});
    all = lead;
    column = {rule.Add(sizes.back(), /*whole=*/true), 1};
    all.push_back(column);
  }

  // Returns the dims of a vector along the row, or of an absent one.
  DimFactors Vector(const RuleInput& input) const {
    return input.defined ? DimFactors{column} : DimFactors{};
  }

  FactorRule rule;
  Shape sizes;       // Of x.
  Shape lead_sizes;  // Without the last dim.
  DimFactors lead;
  DimFactors all;
  DimFactor column;
};

// All gradients are linear in that of the result, so sums may stay pending if
// there is only the gradient of x. With the gradient of a weight or a bias
// there would be two sums to reduce instead of one.
void KeepSumsOfBareNorm(bool bare, FactorRule& rule) {
  if (!bare) return;
  rule.linearity = Linearity::kMultilinear;
  rule.linear_inputs = kFirstInput;
}

RuleResult RmsNormRule(const RuleCall& call) {
  RowFactors rows(call, call.inputs[0]);
  rows.rule.inputs = {rows.all, rows.Vector(call.inputs[1])};
  rows.rule.outputs = {{rows.all, rows.sizes}, {rows.lead, rows.lead_sizes}};
  return SolveFactors(call, rows.rule);
}

RuleResult RmsNormBackwardRule(const RuleCall& call) {
  RowFactors rows(call, call.inputs[1]);
  rows.rule.inputs = {rows.all, rows.all, rows.Vector(call.inputs[2]),
                      rows.lead};
  // If rows are split, each rank has the sum over its own: the gradient of the
  // weight is partial.
  rows.rule.outputs = {{rows.all, rows.sizes},
                       {{rows.column}, {rows.sizes.back()}}};
  KeepSumsOfBareNorm(!call.inputs[2].defined, rows.rule);
  return SolveFactors(call, rows.rule);
}

RuleResult LayerNormRule(const RuleCall& call) {
  RowFactors rows(call, call.inputs[0]);
  rows.rule.inputs = {rows.all, rows.Vector(call.inputs[1]),
                      rows.Vector(call.inputs[2])};
  rows.rule.outputs = {{rows.all, rows.sizes},
                       {rows.lead, rows.lead_sizes},
                       {rows.lead, rows.lead_sizes}};
  return SolveFactors(call, rows.rule);
}

RuleResult LayerNormBackwardRule(const RuleCall& call) {
  const auto& op = static_cast<const LayerNormBackwardOp&>(call.op);
  RowFactors rows(call, call.inputs[1]);
  rows.rule.inputs = {rows.all, rows.all, rows.Vector(call.inputs[2]),
                      rows.lead, rows.lead};
  rows.rule.outputs = {{rows.all, rows.sizes},
                       {{rows.column}, {rows.sizes.back()}},
                       {{rows.column}, {rows.sizes.back()}}};
  KeepSumsOfBareNorm(!call.inputs[2].defined && !op.want_dbias, rows.rule);
  return SolveFactors(call, rows.rule);
}

// (x) or (grad, y) -> as x.
RuleResult SoftmaxRule(const RuleCall& call) {
  RowFactors rows(call, call.inputs[0]);
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    rows.rule.inputs.push_back(rows.all);
  }
  rows.rule.outputs = {{rows.all, rows.sizes}};
  if (call.inputs.size() == 2) {
    rows.rule.linearity = Linearity::kMultilinear;
    rows.rule.linear_inputs = kFirstInput;
  }
  return SolveFactors(call, rows.rule);
}

RuleResult RopeRule(const RuleCall& call) {
  const Shape& sizes = call.inputs[0].sizes;
  CH_CHECK_EQ(sizes.size(), size_t{4}) << DescribeCall(call);
  FactorRule rule;
  rule.linearity = Linearity::kMultilinear;
  rule.linear_inputs = kFirstInput;
  const DimFactor batch = {rule.Add(sizes[0]), 1};
  const DimFactor time = {rule.Add(sizes[1]), 1};
  const DimFactor heads = {rule.Add(sizes[2]), 1};
  // The pairs consist of distant elements.
  const DimFactor width = {};
  DimFactors table = {time, width};
  if (call.inputs[1].sizes.size() == 3) table.insert(table.begin(), batch);
  rule.inputs = {{batch, time, heads, width}, table, table};
  rule.outputs = {{{batch, time, heads, width}, sizes}};
  return SolveFactors(call, rule);
}

// Returns the number of elements of `dim` before this rank's shard.
int64_t OffsetHere(const RuleCall& call, const Layout& layout, int dim,
                   int64_t size) {
  return layout.DimInterval(dim, size, call.coordinate).begin;
}

// The dims of ids, then the table's rows and columns. Each rank looks up the
// rows that it holds and has zeros for the others, so split rows give a pending
// sum.
struct LookupFactors {
  LookupFactors(ShapeView id_sizes, int64_t row_count, int64_t column_count) {
    for (int64_t size : id_sizes) ids.push_back({rule.Add(size), 1});
    row = {rule.Add(row_count), 1};
    column = {rule.Add(column_count), 1};
    vectors = ids;
    vectors.push_back(column);
    rule.linearity = Linearity::kMultilinear;
  }

  FactorRule rule;
  DimFactors ids;
  DimFactors vectors;
  DimFactor row;
  DimFactor column;
};

RuleResult EmbeddingRule(const RuleCall& call) {
  const auto& op = static_cast<const EmbeddingOp&>(call.op);
  const Shape& ids = call.inputs[0].sizes;
  const Shape& table = call.inputs[1].sizes;
  CH_CHECK_EQ(table.size(), size_t{2}) << DescribeCall(call);
  LookupFactors factors(ids, table[0], table[1]);
  factors.rule.linear_inputs = kFirstInput << 1;
  factors.rule.inputs = {factors.ids, {factors.row, factors.column}};
  Shape out = ids;
  out.push_back(table[1]);
  factors.rule.outputs = {{factors.vectors, std::move(out)}};
  RuleResult result = SolveFactors(call, factors.rule);
  if (result.inputs[1].is_sharded(0)) {
    result.local_op = std::make_unique<EmbeddingOp>(
        op.first_row + OffsetHere(call, result.inputs[1], 0, table[0]),
        op.bound);
  }
  return result;
}

RuleResult EmbeddingGradRule(const RuleCall& call) {
  const auto& op = static_cast<const EmbeddingGradOp&>(call.op);
  const Shape& grad = call.inputs[1].sizes;
  LookupFactors factors(call.inputs[0].sizes, op.num_rows, grad.back());
  factors.rule.linear_inputs = kFirstInput << 1;
  factors.rule.inputs = {factors.ids, factors.vectors};
  factors.rule.outputs = {
      {{factors.row, factors.column}, {op.num_rows, grad.back()}}};
  return SolveFactors(call, factors.rule);
}

// The destination's rows determine which ids each rank takes.
RuleResult EmbeddingGradIntoRule(const RuleCall& call) {
  const auto& op = static_cast<const EmbeddingGradIntoOp&>(call.op);
  const Shape& dst = call.inputs[0].sizes;
  LookupFactors factors(call.inputs[1].sizes, dst[0], dst[1]);
  factors.rule.linearity = Linearity::kNone;
  factors.rule.fixed_input = 0;
  factors.rule.inputs = {
      {factors.row, factors.column}, factors.ids, factors.vectors};
  // Ids must not be split, because the destination has no room for partial
  // sums.
  for (const DimFactor& id : factors.ids) {
    factors.rule.factors[id.factor].whole = true;
  }
  factors.rule.outputs = {{{factors.row, factors.column}, dst}};
  RuleResult result = SolveFactors(call, factors.rule);
  if (result.inputs[0].is_sharded(0)) {
    result.local_op = std::make_unique<EmbeddingGradIntoOp>(
        op.first_row + OffsetHere(call, result.inputs[0], 0, dst[0]),
        op.accumulate);
  }
  return result;
}

}  // namespace

void AddLayerRules(OpRuleTable& table) {
  table[&RmsNormOp::kInfo] = {RmsNormRule};
  table[&RmsNormBackwardOp::kInfo] = {RmsNormBackwardRule};
  table[&LayerNormOp::kInfo] = {LayerNormRule};
  table[&LayerNormBackwardOp::kInfo] = {LayerNormBackwardRule};
  table[&SoftmaxOp::kInfo] = {SoftmaxRule};
  table[&SoftmaxBackwardOp::kInfo] = {SoftmaxRule};
  // Tables of cosines and sines are constants.
  table[&RopeOp::kInfo] = {RopeRule, kFirstInput << 1 | kFirstInput << 2};
  // Ids have no gradient.
  table[&EmbeddingOp::kInfo] = {EmbeddingRule, kFirstInput};
  table[&EmbeddingGradOp::kInfo] = {EmbeddingGradRule, kFirstInput};
  table[&EmbeddingGradIntoOp::kInfo] = {EmbeddingGradIntoRule,
                                        kFirstInput << 1};
}

}  // namespace crosshatch
