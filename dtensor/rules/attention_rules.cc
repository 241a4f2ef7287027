// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "crosshatch/base/check.h"
#include "crosshatch/dtensor/redistribution/executor.h"
#include "crosshatch/dtensor/redistribution/plan.h"
#include "crosshatch/dtensor/redistribution/runtime.h"
#include "crosshatch/dtensor/rules/op_rule.h"
#include "crosshatch/dtensor/rules/op_rules.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/attention.h"
#include "crosshatch/tensor/ops/cat.h"
#include "crosshatch/tensor/ops/in_place.h"
#include "crosshatch/tensor/ops/view.h"

namespace crosshatch {
namespace {

// The dim of heads in [batch, time, heads, width].
constexpr int kHeads = 2;

// The factors of attention. Batch and heads may be split; time and the width of
// heads may not. A key head stays with the query heads that use it, with one
// exception: if the queries are split more finely and there are fewer key heads
// than ranks, or if every rank holds all key heads, a rank uses the key heads
// that its queries need.
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
    const DimFactor batch = {rule.Add(q[0])};
    const int heads = rule.Add(shares_keys ? q[kHeads] : k[kHeads]);
    const DimFactor q_heads = {heads, shares_keys ? 1 : group};
    const DimFactor kv_heads = shares_keys ? DimFactor{} : DimFactor{heads};
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

// The index of mask, key ranges and slopes among the inputs of attention, after
// which nothing follows. A call without them has no such inputs.
constexpr size_t kForwardExtras = 3;
constexpr size_t kBackwardExtras = 6;
constexpr size_t kMaskGradExtras = 4;

// Attention of this rank's heads and rows. Dropout depends on indices in the
// global batch. If all key heads are local and query heads are split, there are
// up to three calls, because the local heads may begin and end within a group.
class AttentionHere {
 public:
  struct Whole {
    int64_t heads;  // Query heads.
    int64_t group;  // Of them to a key head.
    bool shares_keys;
  };

  // \param rows this rank's interval of the batch.
  // \param heads this rank's interval of the query heads.
  AttentionHere(Interval rows, Interval heads, const Whole& whole,
                bool backward)
      : first_row_(rows.begin),
        first_head_(heads.begin),
        all_heads_(whole.heads),
        backward_(backward) {
    if (!whole.shares_keys) return;
    const int64_t group = whole.group;
    int64_t at = heads.begin;
    while (at < heads.end || parts_.empty()) {
      const int64_t next_group = (at / group + 1) * group;
      const int64_t last_boundary = heads.end / group * group;
      int64_t end = std::min(next_group, heads.end);
      if (at % group == 0) end = std::max(end, last_boundary);
      end = std::min(end, heads.end);
      parts_.push_back({{at - heads.begin, end - heads.begin},
                        {at / group, (end + group - 1) / group}});
      at = end;
    }
    // No query heads use no key heads.
    if (heads.size() == 0) parts_[0].keys.end = parts_[0].keys.begin;
  }

  TensorList operator()(const Op& op, TensorSpan locals,
                        const DeviceMesh& /*mesh*/) const {
    return backward_ ? Backward(op, locals) : Forward(op, locals);
  }

 private:
  struct Part {
    Interval queries;  // Of those here.
    Interval keys;
  };

  // Returns the op of a part whose heads begin at the given offset.
  template <typename AnyAttentionOp>
  AnyAttentionOp OpOfPart(const Op& op, int64_t heads) const {
    const auto& whole = static_cast<const AnyAttentionOp&>(op);
    return AnyAttentionOp(
        whole.attributes.OfPart(first_row_, first_head_ + heads, all_heads_));
  }

  // Appends those of mask, key ranges and slopes that are present, for a part.
  static void AppendExtras(TensorSpan extras, const Interval& heads,
                           TensorList& inputs) {
    if (extras.empty()) return;
    const auto [mask, ranges, slopes] =
        std::tie(extras[0], extras[1], extras[2]);
    inputs.push_back(
        mask.defined() && mask.size(1) > 1 ? HeadsOf(mask, 1, heads) : mask);
    inputs.push_back(ranges);
    inputs.push_back(slopes.defined() ? HeadsOf(slopes, 0, heads) : slopes);
  }

  TensorList Forward(const Op& op, TensorSpan locals) const {
    if (parts_.empty()) return OpOfPart<AttentionOp>(op, 0).Forward(locals);
    TensorList outs;
    TensorList statistics;
    for (const Part& part : parts_) {
      TensorList inputs = {HeadsOf(locals[0], kHeads, part.queries),
                           HeadsOf(locals[1], kHeads, part.keys),
                           HeadsOf(locals[2], kHeads, part.keys)};
      AppendExtras(locals.subspan(kForwardExtras), part.queries, inputs);
      TensorList results =
          OpOfPart<AttentionOp>(op, part.queries.begin).Forward(inputs);
      outs.push_back(std::move(results[0]));
      statistics.push_back(std::move(results[1]));
    }
    return {Joined(outs, kHeads), Joined(statistics, 1)};
  }

  // (grad, q, k, v, out, logsumexp, ...) -> (dq, dk, dv). The gradients of keys
  // that no local query uses are zeros.
  TensorList Backward(const Op& op, TensorSpan locals) const {
    if (parts_.empty()) {
      return OpOfPart<AttentionBackwardOp>(op, 0).Forward(locals);
    }
    TensorList dq;
    TensorList of_keys;
    for (int i = 2; i < 4; ++i) {
      of_keys.push_back(Zeros(locals[i].sizes(), locals[i].dtype()));
    }
    for (const Part& part : parts_) {
      TensorList inputs = {HeadsOf(locals[0], kHeads, part.queries),
                           HeadsOf(locals[1], kHeads, part.queries),
                           HeadsOf(locals[2], kHeads, part.keys),
                           HeadsOf(locals[3], kHeads, part.keys),
                           HeadsOf(locals[4], kHeads, part.queries),
                           HeadsOf(locals[5], 1, part.queries)};
      AppendExtras(locals.subspan(kBackwardExtras), part.queries, inputs);
      TensorList results =
          OpOfPart<AttentionBackwardOp>(op, part.queries.begin).Forward(inputs);
      dq.push_back(std::move(results[0]));
      for (int i = 0; i < 2; ++i) {
        CopyInPlaceOp().Forward(
            {HeadsOf(of_keys[i], kHeads, part.keys), results[1 + i]});
      }
    }
    return {Joined(dq, kHeads), std::move(of_keys[0]), std::move(of_keys[1])};
  }

  const int64_t first_row_;
  const int64_t first_head_;
  const int64_t all_heads_;
  const bool backward_;
  std::vector<Part> parts_;  // None: all here in one call.
};

// Returns the program of a mask's gradient from this rank's heads and rows. The
// op receives the offsets of its rows and heads in the global batch, and of its
// heads in key heads that are all local.
LocalProgram MaskGradHere(Interval rows, Interval heads,
                          const AttentionHere::Whole& whole) {
  return [=](const Op& op, TensorSpan locals, const DeviceMesh& /*mesh*/) {
    const auto& of_all = static_cast<const AttentionMaskGradOp&>(op);
    return AttentionMaskGradOp(
               of_all.attributes.OfPart(rows.begin, heads.begin, whole.heads),
               {whole.shares_keys ? heads.begin : 0, whole.group})
        .Forward(locals);
  };
}

// Moves split key heads to the ranks whose query heads use them, and their
// gradients back. If there are fewer key heads than ranks, some ranks have
// none. Moving them is part of the op, not an implicit redistribution.
class WithKeysOfOthers {
 public:
  // \param first the index of k among the inputs, after which v comes.
  // \param results whether outputs 1 and 2 are their gradients.
  WithKeysOfOthers(const RuleCall& call, size_t first, bool results,
                   RuleResult& result)
      : first_(first) {
    for (size_t i = 0; i < 2; ++i) {
      const RuleInput& key = call.inputs[first + i];
      Layout& wanted = result.inputs[first + i];
      if (!key.layout.is_sharded(kHeads)) continue;
      const DimSharding& split = key.layout.sharding(kHeads);
      const Layout whole = wanted;
      wanted = whole.WithDim(kHeads, split);
      gather_[i] =
          Prepare(wanted, whole, key.sizes, key.dtype, call.coordinate);
      if (!results) continue;
      Layout& given = result.outputs[1 + i].layout;
      const Layout sums = given;
      given = sums.WithDim(kHeads, split);
      reduce_[i] = Prepare(sums, given, key.sizes, key.dtype, call.coordinate);
    }
    inner_ = std::move(result.program);
  }

  TensorList operator()(const Op& op, TensorSpan locals,
                        const DeviceMesh& mesh) const {
    const auto move = [&](const std::optional<PreparedPlan>& plan,
                          Tensor& part) {
      if (!plan.has_value()) return;
      part = DTensorRuntime::Current().Redistribute(
          *plan, part, mesh, CommOrigin::Op(op.info().name));
    };
    TensorList all(locals.begin(), locals.end());
    for (size_t i = 0; i < 2; ++i) move(gather_[i], all[first_ + i]);
    TensorList outputs = inner_(op, all, mesh);
    for (size_t i = 0; i < 2; ++i) {
      if (reduce_[i].has_value()) move(reduce_[i], outputs[1 + i]);
    }
    return outputs;
  }

 private:
  const size_t first_;
  std::optional<PreparedPlan> gather_[2];
  std::optional<PreparedPlan> reduce_[2];
  LocalProgram inner_;
};

// Appends the dims of mask, key ranges and slopes: each index of batch and
// query heads that they have.
void AddExtras(const RuleCall& call, size_t first, AttentionFactors& factors) {
  if (call.inputs.size() == first) return;
  const RuleInput& mask = call.inputs[first];
  const RuleInput& ranges = call.inputs[first + 1];
  const RuleInput& slopes = call.inputs[first + 2];
  const DimFactor batch = factors.queries[0];
  const DimFactor heads = factors.queries[kHeads];
  const DimFactor whole = {};
  DimFactors of_mask;
  DimFactors of_ranges;
  if (mask.defined) {
    of_mask = {mask.sizes[0] == 1 ? whole : batch,
               mask.sizes[1] == 1 ? whole : heads, whole, whole};
  }
  if (ranges.defined) {
    of_ranges = {ranges.sizes[0] == 1 ? whole : batch, whole, whole};
  }
  factors.rule.inputs.push_back(of_mask);
  factors.rule.inputs.push_back(of_ranges);
  factors.rule.inputs.push_back(slopes.defined ? DimFactors{heads}
                                               : DimFactors{});
}

// \param query its index among the inputs.
RuleResult SolveAttention(const RuleCall& call,
                          const AttentionAttributes& attributes,
                          const AttentionFactors& factors, size_t query) {
  RuleResult result = SolveFactors(call, factors.rule);
  if (factors.shares_keys || attributes.dropout.p > 0) {
    const Shape& sizes = call.inputs[query].sizes;
    const Layout& layout = result.inputs[query];
    const int64_t heads = sizes[kHeads];
    result.program = AttentionHere(
        layout.DimInterval(0, sizes[0], call.coordinate),
        layout.DimInterval(kHeads, heads, call.coordinate),
        AttentionHere::Whole{heads, factors.group, factors.shares_keys},
        /*backward=*/query != 0);
  }
  if (factors.shares_keys) {
    result.program =
        WithKeysOfOthers(call, query + 1, /*results=*/query != 0, result);
  }
  return result;
}

RuleResult AttentionRule(const RuleCall& call) {
  const Shape& q = call.inputs[0].sizes;
  AttentionFactors factors(call, call.inputs[0], call.inputs[1]);
  factors.rule.inputs = {factors.queries, factors.keys, factors.keys};
  AddExtras(call, kForwardExtras, factors);
  factors.rule.outputs = {{factors.queries, q},
                          {factors.statistics, {q[0], q[2], q[1]}}};
  return SolveAttention(
      call, static_cast<const AttentionOp&>(call.op).attributes, factors, 0);
}

RuleResult AttentionBackwardRule(const RuleCall& call) {
  const Shape& q = call.inputs[1].sizes;
  const Shape& k = call.inputs[2].sizes;
  AttentionFactors factors(call, call.inputs[1], call.inputs[2]);
  factors.rule.linearity = Linearity::kMultilinear;
  factors.rule.linear_inputs = kFirstInput;
  factors.rule.inputs = {factors.queries, factors.queries, factors.keys,
                         factors.keys,    factors.queries, factors.statistics};
  AddExtras(call, kBackwardExtras, factors);
  factors.rule.outputs = {
      {factors.queries, q}, {factors.keys, k}, {factors.keys, k}};
  return SolveAttention(
      call, static_cast<const AttentionBackwardOp&>(call.op).attributes,
      factors, 1);
}

// Sums over the rows and heads that the mask lacks.
RuleResult AttentionMaskGradRule(const RuleCall& call) {
  // Ranks' own key heads follow below.
  CH_CHECK_EQ(static_cast<const AttentionMaskGradOp&>(call.op).key_heads.group,
              0)
      << DescribeCall(call)
      << ": of a distributed q the query heads go by the key heads of k";
  const RuleInput& query = call.inputs[1];
  AttentionFactors factors(call, query, call.inputs[2]);
  factors.rule.linearity = Linearity::kMultilinear;
  factors.rule.linear_inputs = kFirstInput;
  factors.rule.inputs = {factors.queries, factors.queries, factors.keys,
                         factors.keys};
  AddExtras(call, kMaskGradExtras, factors);
  factors.rule.outputs = {{factors.rule.inputs[kMaskGradExtras],
                           call.inputs[kMaskGradExtras].sizes}};
  RuleResult result = SolveFactors(call, factors.rule);
  const Layout& layout = result.inputs[1];
  const int64_t heads = query.sizes[kHeads];
  result.program = MaskGradHere(
      layout.DimInterval(0, query.sizes[0], call.coordinate),
      layout.DimInterval(kHeads, heads, call.coordinate),
      AttentionHere::Whole{heads, factors.group, factors.shares_keys});
  if (factors.shares_keys) {
    result.program =
        WithKeysOfOthers(call, /*first=*/2, /*results=*/false, result);
  }
  return result;
}

}  // namespace

void AddAttentionRules(OpRuleTable& table) {
  // A plain mask has no gradient; key ranges and slopes never have one.
  constexpr uint32_t kExtras = 7;
  table[&AttentionOp::kInfo] = {AttentionRule, kExtras << kForwardExtras};
  table[&AttentionBackwardOp::kInfo] = {AttentionBackwardRule,
                                        kExtras << kBackwardExtras};
  table[&AttentionMaskGradOp::kInfo] = {AttentionMaskGradRule,
                                        kExtras << kMaskGradExtras};
}

}  // namespace crosshatch
