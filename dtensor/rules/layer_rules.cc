// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "crosshatch/base/check.h"
#include "crosshatch/dtensor/rules/factor_rule.h"
#include "crosshatch/dtensor/rules/op_rules.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/attention.h"
#include "crosshatch/tensor/ops/cat.h"
#include "crosshatch/tensor/ops/embedding.h"
#include "crosshatch/tensor/ops/in_place.h"
#include "crosshatch/tensor/ops/norm.h"
#include "crosshatch/tensor/ops/rope.h"
#include "crosshatch/tensor/ops/view.h"

namespace crosshatch {
namespace {

constexpr uint32_t kFirst = 1;

// Ops on rows: each index of the leading dims alone, the last dim whole.
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

  // Dims of a vector along the row, or of one that is not there.
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
  // Where rows are split each rank has the sum over its own: the gradient of
  // the weight is partial.
  rows.rule.outputs = {{rows.all, rows.sizes},
                       {{rows.column}, {rows.sizes.back()}}};
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
  RowFactors rows(call, call.inputs[1]);
  rows.rule.inputs = {rows.all, rows.all, rows.Vector(call.inputs[2]),
                      rows.lead, rows.lead};
  rows.rule.outputs = {{rows.all, rows.sizes},
                       {{rows.column}, {rows.sizes.back()}},
                       {{rows.column}, {rows.sizes.back()}}};
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
    rows.rule.linear_inputs = kFirst;
  }
  return SolveFactors(call, rows.rule);
}

RuleResult RopeRule(const RuleCall& call) {
  const Shape& sizes = call.inputs[0].sizes;
  CH_CHECK_EQ(sizes.size(), size_t{4}) << DescribeCall(call);
  FactorRule rule;
  rule.linearity = Linearity::kMultilinear;
  rule.linear_inputs = kFirst;
  const DimFactor batch = {rule.Add(sizes[0]), 1};
  const DimFactor time = {rule.Add(sizes[1]), 1};
  const DimFactor heads = {rule.Add(sizes[2]), 1};
  // Pairs of far elements belong together.
  const DimFactor width = {};
  rule.inputs = {{batch, time, heads, width}, {time, width}, {time, width}};
  rule.outputs = {{{batch, time, heads, width}, sizes}};
  return SolveFactors(call, rule);
}

// The dim of heads in [batch, time, heads, width].
constexpr int kHeads = 2;

// The factors of attention: batch and heads may be split, time and the width of
// heads may not. A key head and the query heads that use it stay together,
// unless the queries come split more finely and there are fewer key heads than
// ranks, or every rank holds all of them: then a rank takes of the keys what
// its queries use.
struct AttentionFactors {
  AttentionFactors(const RuleCall& call, const RuleInput& query,
                   const RuleInput& key) {
    const Shape& q = query.sizes;
    const Shape& k = key.sizes;
    CH_CHECK(q.size() == 4 && k.size() == 4) << DescribeCall(call);
    CH_CHECK(k[kHeads] != 0 && q[kHeads] % k[kHeads] == 0)
        << DescribeCall(call)
        << ": the key heads do not divide the query heads";
    group = q[kHeads] / k[kHeads];
    shares_keys = query.layout.is_sharded(kHeads) &&
                  query.layout.unit(kHeads) % group != 0 &&
                  (!key.layout.is_sharded(kHeads) ||
                   k[kHeads] < query.layout.num_chunks(kHeads));
    const DimFactor batch = {rule.Add(q[0]), 1};
    const int heads = rule.Add(shares_keys ? q[kHeads] : k[kHeads]);
    const DimFactor q_heads = {heads, shares_keys ? 1 : group};
    const DimFactor kv_heads = shares_keys ? DimFactor{} : DimFactor{heads, 1};
    queries = {batch, {}, q_heads, {}};
    keys = {batch, {}, kv_heads, {}};
    statistics = {batch, q_heads, {}};
  }

  FactorRule rule;
  DimFactors queries;
  DimFactors keys;
  DimFactors statistics;
  int64_t group;     // Query heads to a key head.
  bool shares_keys;  // Ranks may split a group.
};

Tensor HeadsOf(const Tensor& t, int dim, const Interval& heads) {
  return std::move(SliceOp(dim, heads.begin, heads.end).Forward({t})[0]);
}

Tensor Joined(const TensorList& parts, int dim) {
  return parts.size() == 1 ? parts[0] : std::move(CatOp(dim).Forward(parts)[0]);
}

// Attention of some query heads with all key heads at hand: up to three calls,
// as the heads begin and end within a group or at its border.
class AttentionOfSomeHeads final : public LocalProgram {
 public:
  // \param heads of all query heads; `group` of them to a key head.
  AttentionOfSomeHeads(Interval heads, int64_t group, bool backward)
      : backward_(backward) {
    int64_t at = heads.begin;
    while (at < heads.end || parts_.empty()) {
      const int64_t next_group = (at / group + 1) * group;
      const int64_t last_border = heads.end / group * group;
      int64_t end = std::min(next_group, heads.end);
      if (at % group == 0) end = std::max(end, last_border);
      end = std::min(end, heads.end);
      parts_.push_back({{at - heads.begin, end - heads.begin},
                        {at / group, (end + group - 1) / group}});
      at = end;
    }
    // No heads use no keys.
    if (heads.size() == 0) parts_[0].keys.end = parts_[0].keys.begin;
  }

  TensorList Run(const Op& op, TensorSpan locals,
                 const DeviceMesh& /*mesh*/) const override {
    return backward_ ? Backward(op, locals) : Forward(op, locals);
  }

 private:
  struct Part {
    Interval queries;  // Of those here.
    Interval keys;
  };

  TensorList Forward(const Op& op, TensorSpan locals) const {
    TensorList outs;
    TensorList statistics;
    for (const Part& part : parts_) {
      TensorList results = op.Forward({HeadsOf(locals[0], kHeads, part.queries),
                                       HeadsOf(locals[1], kHeads, part.keys),
                                       HeadsOf(locals[2], kHeads, part.keys)});
      outs.push_back(std::move(results[0]));
      statistics.push_back(std::move(results[1]));
    }
    return {Joined(outs, kHeads), Joined(statistics, 1)};
  }

  // (grad, q, k, v, out, logsumexp) -> (dq, dk, dv): of keys that no query here
  // uses the gradients are zeros.
  TensorList Backward(const Op& op, TensorSpan locals) const {
    TensorList dq;
    TensorList of_keys;
    for (int i = 2; i < 4; ++i) {
      of_keys.push_back(Zeros(locals[i].sizes(), locals[i].dtype()));
    }
    for (const Part& part : parts_) {
      TensorList results = op.Forward({HeadsOf(locals[0], kHeads, part.queries),
                                       HeadsOf(locals[1], kHeads, part.queries),
                                       HeadsOf(locals[2], kHeads, part.keys),
                                       HeadsOf(locals[3], kHeads, part.keys),
                                       HeadsOf(locals[4], kHeads, part.queries),
                                       HeadsOf(locals[5], 1, part.queries)});
      dq.push_back(std::move(results[0]));
      for (int i = 0; i < 2; ++i) {
        CopyInPlaceOp().Forward(
            {HeadsOf(of_keys[i], kHeads, part.keys), results[1 + i]});
      }
    }
    return {Joined(dq, kHeads), std::move(of_keys[0]), std::move(of_keys[1])};
  }

  const bool backward_;
  std::vector<Part> parts_;
};

// \param query its number among the inputs.
RuleResult SolveAttention(const RuleCall& call, const AttentionFactors& factors,
                          size_t query) {
  RuleResult result = SolveFactors(call, factors.rule);
  if (factors.shares_keys) {
    const Interval heads = result.inputs[query].DimInterval(
        kHeads, call.inputs[query].sizes[kHeads], call.coordinate);
    result.program = std::make_unique<AttentionOfSomeHeads>(
        heads, factors.group, /*backward=*/query != 0);
  }
  return result;
}

RuleResult AttentionRule(const RuleCall& call) {
  const Shape& q = call.inputs[0].sizes;
  AttentionFactors factors(call, call.inputs[0], call.inputs[1]);
  factors.rule.inputs = {factors.queries, factors.keys, factors.keys};
  factors.rule.outputs = {{factors.queries, q},
                          {factors.statistics, {q[0], q[2], q[1]}}};
  return SolveAttention(call, factors, 0);
}

RuleResult AttentionBackwardRule(const RuleCall& call) {
  const Shape& q = call.inputs[1].sizes;
  const Shape& k = call.inputs[2].sizes;
  AttentionFactors factors(call, call.inputs[1], call.inputs[2]);
  factors.rule.linearity = Linearity::kMultilinear;
  factors.rule.linear_inputs = kFirst;
  factors.rule.inputs = {factors.queries, factors.queries, factors.keys,
                         factors.keys,    factors.queries, factors.statistics};
  factors.rule.outputs = {
      {factors.queries, q}, {factors.keys, k}, {factors.keys, k}};
  return SolveAttention(call, factors, 1);
}

// Elements of `dim` before this rank's shard.
int64_t OffsetHere(const RuleCall& call, const Layout& layout, int dim,
                   int64_t size) {
  return layout.DimInterval(dim, size, call.coordinate).begin;
}

// The dims of ids, then the table's rows and columns. Each rank looks up the
// rows that it holds and gives zeros for others: split rows make a sum.
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
  factors.rule.linear_inputs = kFirst << 1;
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
  factors.rule.linear_inputs = kFirst << 1;
  factors.rule.inputs = {factors.ids, factors.vectors};
  factors.rule.outputs = {
      {{factors.row, factors.column}, {op.num_rows, grad.back()}}};
  return SolveFactors(call, factors.rule);
}

// The destination's rows say which ids each rank takes.
RuleResult EmbeddingGradIntoRule(const RuleCall& call) {
  const auto& op = static_cast<const EmbeddingGradIntoOp&>(call.op);
  const Shape& dst = call.inputs[0].sizes;
  LookupFactors factors(call.inputs[1].sizes, dst[0], dst[1]);
  factors.rule.linearity = Linearity::kNone;
  factors.rule.fixed_input = 0;
  factors.rule.inputs = {
      {factors.row, factors.column}, factors.ids, factors.vectors};
  // Ids may not be split: the destination has no room for partial sums.
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
  table[&RopeOp::kInfo] = {RopeRule, kFirst << 1 | kFirst << 2};
  table[&AttentionOp::kInfo] = {AttentionRule};
  table[&AttentionBackwardOp::kInfo] = {AttentionBackwardRule};
  // Ids carry no gradient.
  table[&EmbeddingOp::kInfo] = {EmbeddingRule, kFirst};
  table[&EmbeddingGradOp::kInfo] = {EmbeddingGradRule, kFirst};
  table[&EmbeddingGradIntoOp::kInfo] = {EmbeddingGradIntoRule, kFirst << 1};
}

}  // namespace crosshatch
