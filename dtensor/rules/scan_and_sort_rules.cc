// SPDX-License-Identifier: Apache-2.0
// Rules of ops along one dim: cumulative sums and sorts.
#include <algorithm>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "crosshatch/dtensor/rules/op_rule.h"
#include "crosshatch/dtensor/rules/op_rules.h"
#include "crosshatch/dtensor/rules/split_dim.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/kernels/kernel_table.h"
#include "crosshatch/tensor/ops/cast.h"
#include "crosshatch/tensor/ops/in_place.h"
#include "crosshatch/tensor/ops/pointwise.h"
#include "crosshatch/tensor/ops/reduce.h"
#include "crosshatch/tensor/ops/scan_and_sort.h"
#include "crosshatch/tensor/ops/view.h"

namespace crosshatch {
namespace {

Tensor Only(TensorList outputs) { return std::move(outputs[0]); }

Shape WithSize(ShapeView sizes, int dim, int64_t size) {
  Shape result(sizes.begin(), sizes.end());
  result[dim] = size;
  return result;
}

// Cumulative sums of a split dim. The ranks exchange the totals of their parts,
// and each adds those before its own.
class ShardedCumSum {
 public:
  ShardedCumSum(SplitDim split, bool reverse) : split_(std::move(split)) {
    for (const Interval& part : split_.parts) {
      counts_.push_back(part.size() > 0);
    }
    const auto here = counts_.begin() + static_cast<ptrdiff_t>(split_.here);
    const int64_t before = std::accumulate(counts_.begin(), here, int64_t{0});
    const int64_t all = std::accumulate(here, counts_.end(), before);
    others_ = reverse ? Interval{before + *here, all} : Interval{0, before};
  }

  TensorList operator()(const Op& op, TensorSpan locals,
                        const DeviceMesh& mesh) const {
    const auto& cumsum = static_cast<const CumSumOp&>(op);
    const int dim = split_.dim;
    Tensor local = locals[0];
    const DType dtype = local.dtype();
    // Totals of 16-bit floats are not rounded.
    const bool widen = IsFloatingPoint(dtype) && SizeOf(dtype) == 2;
    if (widen) local = Only(CastOp(kFloat32).Forward({local}));
    Tensor sums = Only(cumsum.Forward({local}));

    const int64_t n = sums.size(dim);
    Tensor total = sums;
    if (n > 0) {
      const int64_t last = cumsum.reverse ? 0 : n - 1;
      total = Only(SliceOp(dim, last, last + 1).Forward({sums}));
      if (!total.is_contiguous()) total = Only(CloneOp().Forward({total}));
    }
    const Tensor totals =
        GatherParts(total, dim, counts_, split_.axes, mesh, "cumsum");
    if (n > 0 && others_.size() > 0) {
      const Tensor others =
          Only(SliceOp(dim, others_.begin, others_.end).Forward({totals}));
      const Tensor offset = Only(
          ReductionOp(ReduceKind::kSum, {dim}, /*keepdim=*/true, sums.dtype())
              .Forward({others}));
      AddInPlaceOp(1).Forward({sums, offset});
    }
    return {widen ? Only(CastOp(dtype).Forward({sums})) : sums};
  }

 private:
  const SplitDim split_;
  std::vector<int64_t> counts_;  // Of totals, by rank.
  Interval others_;              // The totals to be added here.
};

RuleResult CumSumRule(const RuleCall& call) {
  const auto& op = static_cast<const CumSumOp&>(call.op);
  const Shape& sizes = call.inputs[0].sizes;
  FactorRule rule = Einsum(call, "...->...");
  rule.linearity = Linearity::kMultilinear;
  RuleResult result = SolveFactors(call, rule);
  if (result.inputs[0].is_sharded(op.dim)) {
    result.program = ShardedCumSum(
        SplitDim(call, result.inputs[0], op.dim, sizes[op.dim]), op.reverse);
  }
  return result;
}

// The first elements of a sorted split dim, which are among the first ones of
// the parts.
class ShardedTopK {
 public:
  ShardedTopK(SplitDim split, std::vector<int64_t> counts)
      : split_(std::move(split)), counts_(std::move(counts)) {}

  TensorList operator()(const Op& op, TensorSpan locals,
                        const DeviceMesh& mesh) const {
    const auto& sort = static_cast<const SortOp&>(op);
    // Ordered by index on each rank, so that all candidates are, too.
    TensorList own = SortOp(split_.dim, counts_[split_.here], sort.descending,
                            /*sorted=*/false)
                         .Forward({locals[0]});
    const auto begin = static_cast<double>(split_.parts[split_.here].begin);
    own[1] =
        Only(UnaryPointwiseOp(UnaryOp::kAddScalar, begin).Forward({own[1]}));
    TensorList all;
    for (const Tensor& t : own) {
      all.push_back(
          GatherParts(t, split_.dim, counts_, split_.axes, mesh, "topk"));
    }
    return sort.Forward(all);
  }

 private:
  const SplitDim split_;
  const std::vector<int64_t> counts_;  // Of candidates, by rank.
};

// Returns `layout`, which does not split `dim`, with `axes` splitting the
// longest other dim that has elements for each rank, if there is one.
Layout SplitElsewhere(Layout layout, absl::Span<const int> axes, int dim,
                      const Shape& sizes) {
  int longest = -1;
  for (int d = 0; d < layout.ndim(); ++d) {
    if (d != dim && (longest < 0 || sizes[d] > sizes[longest])) longest = d;
  }
  if (longest < 0) return layout;
  for (int axis : axes) {
    const int64_t chunks =
        int64_t{layout.num_chunks(longest)} * layout.mesh().size(axis);
    if (layout.state_of_axis(axis).is_replicate() &&
        chunks * layout.unit(longest) <= sizes[longest]) {
      layout = layout.WithShard(axis, longest);
    }
  }
  return layout;
}

RuleResult SortRule(const RuleCall& call) {
  const auto& op = static_cast<const SortOp&>(call.op);
  const RuleInput& input = call.inputs[0];
  const Shape& sizes = input.sizes;
  const absl::Span<const int> axes = input.layout.axes_of_dim(op.dim);
  std::vector<int64_t> counts;
  for (const Interval& part :
       input.layout.DimIntervals(op.dim, sizes[op.dim])) {
    counts.push_back(std::min(op.count, part.size()));
  }
  // Otherwise redistribute so that the dim is local, because there would be too
  // many candidates.
  const int64_t candidates =
      std::accumulate(counts.begin(), counts.end(), int64_t{0});
  const bool exchange = !axes.empty() && 2 * candidates <= sizes[op.dim];

  FactorRule rule;
  DimFactors dims = rule.AddAll(sizes);
  if (!exchange) dims[op.dim] = {};
  rule.inputs = {dims};
  dims[op.dim] = {};
  const Shape taken = WithSize(sizes, op.dim, op.count);
  rule.outputs = {{dims, taken}, {dims, taken}};
  RuleResult result = SolveFactors(call, rule);
  if (exchange) {
    result.program = ShardedTopK(
        SplitDim(call, input.layout, op.dim, sizes[op.dim]), std::move(counts));
    for (RuleResult::Output& output : result.outputs) {
      for (int axis : axes) output.layout = output.layout.WithReplicate(axis);
    }
  } else if (!axes.empty()) {
    result.inputs[0] = SplitElsewhere(result.inputs[0], axes, op.dim, sizes);
    for (RuleResult::Output& output : result.outputs) {
      output.layout = result.inputs[0];
    }
  }
  return result;
}

}  // namespace

void AddScanAndSortRules(OpRuleTable& table) {
  table[&CumSumOp::kInfo] = {CumSumRule};
  table[&SortOp::kInfo] = {SortRule};
}

}  // namespace crosshatch
