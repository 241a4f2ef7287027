// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <utility>

#include "crosshatch/base/check.h"
#include "crosshatch/dtensor/layout/layout_pair.h"
#include "crosshatch/dtensor/redistribution/runtime.h"
#include "crosshatch/dtensor/rules/factor_rule.h"
#include "crosshatch/dtensor/rules/op_rules.h"
#include "crosshatch/tensor/ops/grouped_matmul.h"
#include "crosshatch/tensor/ops/in_place.h"
#include "crosshatch/tensor/ops/matmul.h"

namespace crosshatch {
namespace {

// One factor for each batch dim, then m, n and k, of (a, b) -> out.
FactorRule MatMulFactors(ShapeView a, ShapeView b, const MatMulSpec& spec) {
  const Shape out = MatMulSizes(a, b, spec);
  const size_t a_batch = a.size() - 2;
  const size_t b_batch = b.size() - 2;
  const size_t batch = std::max(a_batch, b_batch);
  const auto batch_size = [&](ShapeView sizes, size_t dims, size_t i) {
    return i + dims < batch ? int64_t{1} : sizes[i + dims - batch];
  };

  FactorRule rule;
  rule.linearity = Linearity::kMultilinear;
  DimFactors a_dims;
  DimFactors b_dims;
  FactorRule::Output output = {{}, out};
  for (size_t i = 0; i < batch; ++i) {
    const int64_t in_a = batch_size(a, a_batch, i);
    const int64_t in_b = batch_size(b, b_batch, i);
    const int64_t size = in_a == 1 ? in_b : in_a;
    const int factor = rule.Add(size);
    const auto dim = [&](int64_t in) {
      return in == size ? DimFactor{factor, 1} : DimFactor{};
    };
    if (i + a_batch >= batch) a_dims.push_back(dim(in_a));
    if (i + b_batch >= batch) b_dims.push_back(dim(in_b));
    if (!spec.sum_batch) output.dims.push_back({factor, 1});
  }
  const int m = rule.Add(a[a_batch + (spec.transpose_a ? 1 : 0)]);
  const int k = rule.Add(a[a_batch + (spec.transpose_a ? 0 : 1)]);
  const int n = rule.Add(b[b_batch + (spec.transpose_b ? 0 : 1)]);
  a_dims.push_back({spec.transpose_a ? k : m, 1});
  a_dims.push_back({spec.transpose_a ? m : k, 1});
  b_dims.push_back({spec.transpose_b ? n : k, 1});
  b_dims.push_back({spec.transpose_b ? k : n, 1});
  output.dims.push_back({m, 1});
  output.dims.push_back({n, 1});
  rule.inputs = {std::move(a_dims), std::move(b_dims)};
  rule.outputs = {std::move(output)};
  return rule;
}

RuleResult MatMulRule(const RuleCall& call) {
  const auto& op = static_cast<const MatMulOp&>(call.op);
  return SolveFactors(
      call, MatMulFactors(call.inputs[0].sizes, call.inputs[1].sizes, op.spec));
}

// Computes a product whose layout differs from its destination's: in a
// temporary, which is redistributed and written.
class MatMulThenWrite final : public LocalProgram {
 public:
  MatMulThenWrite(Layout from, Layout to, Shape sizes)
      : from_(std::move(from)), to_(std::move(to)), sizes_(std::move(sizes)) {}

  TensorList Run(const Op& op, TensorSpan locals,
                 const DeviceMesh& mesh) const override {
    const auto& into = static_cast<const MatMulIntoOp&>(op);
    Tensor product = MatMulOp(into.spec).Forward(locals.subspan(1))[0];
    DTensorRuntime& runtime = DTensorRuntime::Current();
    // The sum of a gradient over ranks that all use the leaf is required by the
    // leaf's layout.
    const CommOrigin origin = IsBeforeReduction(from_, to_)
                                  ? CommOrigin::Op(op.info().name)
                                  : CommOrigin::Implicit(op.info().name);
    product = runtime.Redistribute(
        runtime.Plan(runtime.Intern(from_), runtime.Intern(to_), sizes_,
                     SizeOf(product.dtype())),
        product, mesh, origin);
    if (into.accumulate) return AddInPlaceOp(1).Forward({locals[0], product});
    return CopyInPlaceOp().Forward({locals[0], product});
  }

 private:
  const Layout from_;
  const Layout to_;
  const Shape sizes_;
};

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
  RuleResult result = SolveFactors(
      product,
      MatMulFactors(call.inputs[1].sizes, call.inputs[2].sizes, op.spec));
  RuleResult::Output& made = result.outputs[0];
  CH_CHECK(made.sizes == dst.sizes)
      << DescribeCall(call) << ": the product has sizes "
      << ToString(made.sizes);
  if (!SameShards(made.layout, dst.layout, made.sizes)) {
    result.program =
        std::make_unique<MatMulThenWrite>(made.layout, dst.layout, made.sizes);
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
  const Shape& x = call.inputs[0].sizes;
  const Shape& w = call.inputs[1].sizes;
  FactorRule rule;
  const Shape out = GroupedMatMulSizes(x, w, op.offsets, op.transpose_w);
  const int in = rule.Add(x[1]);
  const int features = rule.Add(out[1]);
  rule.linearity = Linearity::kMultilinear;
  rule.inputs = {{{}, {in, 1}},
                 op.transpose_w ? DimFactors{{}, {features, 1}, {in, 1}}
                                : DimFactors{{}, {in, 1}, {features, 1}}};
  rule.outputs = {{{{}, {features, 1}}, out}};
  return SolveFactors(call, rule);
}

RuleResult GroupedOuterRule(const RuleCall& call) {
  const auto& op = static_cast<const GroupedOuterOp&>(call.op);
  const Shape& a = call.inputs[0].sizes;
  const Shape& b = call.inputs[1].sizes;
  FactorRule rule;
  const Shape out = GroupedOuterSizes(a, b, op.offsets);
  const int m = rule.Add(a[1]);
  const int n = rule.Add(b[1]);
  rule.linearity = Linearity::kMultilinear;
  rule.inputs = {{{}, {m, 1}}, {{}, {n, 1}}};
  rule.outputs = {{{{}, {m, 1}, {n, 1}}, out}};
  return SolveFactors(call, rule);
}

}  // namespace

void AddMatMulRules(OpRuleTable& table) {
  table[&GroupedMatMulOp::kInfo] = {GroupedMatMulRule};
  table[&GroupedOuterOp::kInfo] = {GroupedOuterRule};
  table[&MatMulOp::kInfo] = {MatMulRule};
  table[&MatMulIntoOp::kInfo] = {MatMulIntoRule};
}

}  // namespace crosshatch
