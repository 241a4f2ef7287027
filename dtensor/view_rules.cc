// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>
#include <utility>

#include "crosshatch/base/check.h"
#include "crosshatch/dtensor/factor_rule.h"
#include "crosshatch/dtensor/op_rules.h"
#include "crosshatch/tensor/ops/cat.h"
#include "crosshatch/tensor/ops/pad.h"
#include "crosshatch/tensor/ops/view.h"

namespace crosshatch {
namespace {

// Dims [in_begin, in_end) of the input and [out_begin, out_end) of the output
// hold the same elements; no smaller ranges do.
struct DimGroup {
  int in_begin, in_end;
  int out_begin, out_end;
};

std::vector<DimGroup> GroupDims(ShapeView in, ShapeView out) {
  std::vector<DimGroup> groups;
  const int in_dims = static_cast<int>(in.size());
  const int out_dims = static_cast<int>(out.size());
  int i = 0;
  int o = 0;
  while (i < in_dims || o < out_dims) {
    DimGroup group = {i, i, o, o};
    int64_t in_numel = 1;
    int64_t out_numel = 1;
    if (i < in_dims) in_numel = in[i++];
    if (o < out_dims) out_numel = out[o++];
    while (in_numel != out_numel) {
      if (in_numel < out_numel && i < in_dims) {
        in_numel *= in[i++];
      } else if (o < out_dims) {
        out_numel *= out[o++];
      } else if (i < in_dims) {
        in_numel *= in[i++];
      } else {
        break;  // Only where there are no elements at all.
      }
    }
    group.in_end = i;
    group.out_end = o;
    groups.push_back(group);
  }
  return groups;
}

int64_t Product(ShapeView sizes, int begin, int end) {
  int64_t product = 1;
  for (int d = begin; d < end; ++d) product *= sizes[d];
  return product;
}

class ViewLayout {
 public:
  ViewLayout(const RuleCall& call, ShapeView out)
      : call_(call),
        in_layout_(call.inputs[0].layout),
        in_(call.inputs[0].sizes),
        out_(out),
        dims_(out.size()) {}

  Layout Solve() {
    CH_CHECK_EQ(NumElements(in_), NumElements(out_))
        << DescribeCall(call_) << ": the view has sizes " << ToString(out_);
    for (const DimGroup& group : GroupDims(in_, out_)) Carry(group);
    return Layout(call_.mesh, std::move(dims_), in_layout_.partials());
  }

 private:
  // Takes the split of a group's input dims to its output dims.
  void Carry(const DimGroup& group) {
    int split = -1;
    for (int d = group.in_begin; d < group.in_end; ++d) {
      if (!in_layout_.is_sharded(d)) continue;
      if (split >= 0) Fail(d);
      split = d;
    }
    if (split < 0) return;
    if (Product(in_, group.in_begin, split) != 1 && NumElements(in_) != 0) {
      // What is next to each other in the output would come from several
      // ranks in turn.
      Fail(split);
    }
    // In elements of the group.
    const int64_t in_inner = Product(in_, split + 1, group.in_end);
    const DimSharding& sharding = in_layout_.sharding(split);
    for (int d = group.out_begin; d < group.out_end; ++d) {
      const int64_t out_inner = Product(out_, d + 1, group.out_end);
      if (Product(out_, group.out_begin, d) != 1) break;
      DimSharding candidate = sharding;
      for (int64_t unit :
           {CeilDiv(sharding.unit * in_inner, out_inner), int64_t{1}}) {
        candidate.unit = std::max<int64_t>(unit, 1);
        if (candidate.unit == 1) candidate.fine_axes = 0;
        if (SameElements(split, in_inner, d, out_inner, candidate)) {
          dims_[d] = candidate;
          return;
        }
      }
    }
    Fail(split);
  }

  static int64_t CeilDiv(int64_t a, int64_t b) {
    return b == 0 ? a : (a + b - 1) / b;
  }

  // Whether every rank's part of the input is its part of the output.
  bool SameElements(int in_dim, int64_t in_inner, int out_dim,
                    int64_t out_inner, const DimSharding& candidate) const {
    const Layout split(call_.mesh, {candidate});
    for (int i = 0; i < call_.mesh.size(); ++i) {
      const MeshCoordinate at = call_.mesh.CoordinateAt(i);
      const Interval in = in_layout_.DimInterval(in_dim, in_[in_dim], at);
      const Interval out = split.DimInterval(0, out_[out_dim], at);
      if (in.size() * in_inner != out.size() * out_inner) return false;
      if (in.size() != 0 && in.begin * in_inner != out.begin * out_inner) {
        return false;
      }
    }
    return true;
  }

  [[noreturn]] void Fail(int dim) const {
    CH_CHECK(false) << DescribeCall(call_)
                    << ": no layout of a tensor of sizes " << ToString(out_)
                    << " has the same elements on every rank "
                    << "as the split of dim " << dim
                    << "; redistribute that dim to Replicate first";
    std::abort();
  }

  const RuleCall& call_;
  const Layout& in_layout_;
  const ShapeView in_;
  const ShapeView out_;
  std::vector<DimSharding> dims_;
};

RuleResult ViewRule(const RuleCall& call) {
  const auto& op = static_cast<const ViewOp&>(call.op);
  Layout layout = ViewLayout(call, op.sizes).Solve();
  RuleResult result;
  result.inputs = {call.inputs[0].layout};
  // The strides of a shard are not the user's doing: it may be a part of what
  // the rank held before.
  result.local_op = std::make_unique<ViewOp>(
      layout.LocalShape(op.sizes, call.coordinate), /*may_copy=*/true);
  result.outputs.push_back({std::move(layout), op.sizes});
  return result;
}

RuleResult PermuteRule(const RuleCall& call) {
  const auto& op = static_cast<const PermuteOp&>(call.op);
  const Shape& sizes = call.inputs[0].sizes;
  FactorRule rule;
  rule.linearity = Linearity::kMove;
  DimFactors dims;
  for (int64_t size : sizes) dims.push_back({rule.Add(size), 1});
  FactorRule::Output output;
  for (int64_t d : op.dims) {
    output.dims.push_back(dims[d]);
    output.sizes.push_back(sizes[d]);
  }
  rule.inputs = {std::move(dims)};
  rule.outputs = {std::move(output)};
  return SolveFactors(call, rule);
}

RuleResult SliceRule(const RuleCall& call) {
  const auto& op = static_cast<const SliceOp&>(call.op);
  const Shape& sizes = call.inputs[0].sizes;
  const bool all = op.start == 0 && op.end == sizes[op.dim];
  FactorRule rule;
  rule.linearity = Linearity::kMove;
  FactorRule::Output output = {{}, sizes};
  output.sizes[op.dim] = op.end - op.start;
  for (int d = 0; d < static_cast<int>(sizes.size()); ++d) {
    output.dims.push_back({rule.Add(sizes[d], d == op.dim && !all), 1});
  }
  rule.inputs = {output.dims};
  rule.outputs = {std::move(output)};
  RuleResult result = SolveFactors(call, rule);
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
    dims.push_back(repeats ? DimFactor{} : DimFactor{rule.Add(sizes[d]), 1});
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
  FactorRule rule;
  rule.linearity = Linearity::kMove;
  FactorRule::Output output = {{}, call.inputs[0].sizes};
  for (int d = 0; d < static_cast<int>(output.sizes.size()); ++d) {
    output.dims.push_back(
        d == op.dim ? DimFactor{} : DimFactor{rule.Add(output.sizes[d]), 1});
  }
  int64_t joined = 0;
  for (const RuleInput& input : call.inputs) {
    CH_CHECK_EQ(input.sizes.size(), output.sizes.size()) << DescribeCall(call);
    joined += input.sizes[op.dim];
    rule.inputs.push_back(output.dims);
  }
  output.sizes[op.dim] = joined;
  rule.outputs = {std::move(output)};
  return SolveFactors(call, rule);
}

RuleResult PadRule(const RuleCall& call) {
  const auto& op = static_cast<const PadOp&>(call.op);
  FactorRule rule;
  rule.linearity = Linearity::kMove;
  FactorRule::Output output = {{}, call.inputs[0].sizes};
  for (int d = 0; d < static_cast<int>(output.sizes.size()); ++d) {
    output.dims.push_back(
        d == op.dim ? DimFactor{} : DimFactor{rule.Add(output.sizes[d]), 1});
  }
  rule.inputs = {output.dims};
  output.sizes[op.dim] += op.before + op.after;
  rule.outputs = {std::move(output)};
  return SolveFactors(call, rule);
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
