// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "crosshatch/dtensor/tests/op_rule_cases.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch {
namespace {

using T = TensorSpan;
using enum CaseInput::Kind;

// Returns whether the written operand has no pending reductions except sums,
// because others do not commute with additions and products.
bool WritesToSums(absl::Span<const Layout> layouts) {
  for (const AxisState& state : layouts[0].axis_states()) {
    if (state.is_partial() && state.op != ReduceOp::kSum &&
        state.op != ReduceOp::kAvg) {
      return false;
    }
  }
  return true;
}

}  // namespace

std::vector<RuleCase> PointwiseCases() {
  return {
      {"add", {{{3, 5}}, {{3, 5}}}, [](T t) { return Add(t[0], t[1], 2); }},
      {"add row", {{{3, 5}}, {{5}}}, [](T t) { return Add(t[0], t[1]); }},
      {"add column", {{{3, 5}}, {{3, 1}}}, [](T t) { return Add(t[0], t[1]); }},
      {"add outer", {{{3, 1}}, {{1, 5}}}, [](T t) { return Add(t[0], t[1]); }},
      {"sub", {{{2, 3}}, {{2, 3}}}, [](T t) { return Sub(t[0], t[1]); }},
      {"mul", {{{3, 5}}, {{3, 5}}}, [](T t) { return Mul(t[0], t[1]); }},
      {"mul row", {{{3, 4}}, {{4}}}, [](T t) { return Mul(t[0], t[1]); }},
      {"div",
       {{{3, 5}, kFraction}, {{3, 5}, kPositive}},
       [](T t) { return Div(t[0], t[1]); }},
      {"maximum",
       {{{3, 5}}, {{3, 5}}},
       [](T t) { return Maximum(t[0], t[1]); }},
      {"scalars",
       {{{3, 5}}},
       [](T t) { return Sub(5, Add(Mul(Neg(t[0]), 2), 3)); }},
      {"exp", {{{3, 5}, kFraction}}, [](T t) { return Exp(t[0]); }},
      {"silu", {{{5}, kFraction}}, [](T t) { return Silu(t[0]); }},
      {"gelu", {{{5}, kFraction}}, [](T t) { return Gelu(t[0]); }},
      {"gelu_exact", {{{5}, kFraction}}, [](T t) { return GeluExact(t[0]); }},
      {"erf", {{{5}, kFraction}}, [](T t) { return Erf(t[0]); }},
      {"relu", {{{7}}}, [](T t) { return Relu(t[0]); }},
      {"where",
       {{{3, 5}}, {{3, 5}}},
       [](T t) { return Where(Greater(t[0], t[1]), t[0], Mul(t[1], 2)); }},
      {"swiglu",
       {{{3, 5}, kFraction}, {{3, 5}, kFraction}},
       [](T t) { return SwiGlu(t[0], t[1]); }},
      {"cast",
       {{{3, 5}}},
       [](T t) { return ToDType(ToDType(t[0], kBFloat16), kFloat32); }},
      {"clone", {{{3, 5}}}, [](T t) { return Clone(t[0]); }},
      {"full_like", {{{3, 5}}}, [](T t) { return Add(t[0], OnesLike(t[0])); }},
      {"minimum",
       {{{3, 5}}, {{3, 5}}},
       [](T t) { return Minimum(t[0], t[1]); }},
      {"pow",
       {{{3, 5}, kPositive}, {{5}, kFraction}},
       [](T t) { return Pow(t[0], t[1]); }},
      {"bounds",
       {{{7}}},
       [](T t) { return Minimum(Maximum(t[0], -1.5), 1.5); }},
      {"abs and sign", {{{7}}}, [](T t) { return Mul(Abs(t[0]), Sign(t[0])); }},
      {"square", {{{3, 5}}}, [](T t) { return Square(t[0]); }},
      {"log and roots",
       {{{5}, kPositive}},
       [](T t) { return Add(Log(t[0]), Mul(Sqrt(t[0]), Rsqrt(t[0]))); }},
      {"reciprocal",
       {{{5}, kPositive}},
       [](T t) { return Add(Reciprocal(t[0]), Pow(t[0], 3)); }},
      {"tanh and sigmoid",
       {{{5}, kFraction}},
       [](T t) { return Mul(Tanh(t[0]), Sigmoid(t[0])); }},
      {"equal", {{{7}}, {{7}}}, [](T t) { return Equal(t[0], t[1]); }},
      {"not_equal", {{{7}}, {{7}}}, [](T t) { return NotEqual(t[0], t[1]); }},
      {"less",
       {{{3, 5}}, {{5}}},
       [](T t) {
         return LogicalOr(Less(t[0], t[1]), LogicalNot(LessEqual(t[0], t[1])));
       }},
      {"greater_equal",
       {{{3, 5}}, {{5}}},
       [](T t) {
         return LogicalAnd(Greater(t[0], t[1]), GreaterEqual(t[0], t[1]));
       }},
      {"cast to integers",
       {{{3, 5}, kFraction}},
       [](T t) { return ToDType(Mul(t[0], 9), kInt64); }},
      {"no dims", {{{}}, {{3}}}, [](T t) { return Mul(t[0], t[1]); }},
      {"empty", {{{0, 3}}, {{3}}}, [](T t) { return Mul(t[0], t[1]); }},
  };
}

std::vector<RuleCase> InPlaceCases() {
  const CaseInput factor = {{3, 5}, CaseInput::kWhole, 0, /*sums=*/false};
  return {
      {"add_in_place",
       {{{3, 5}}, {{5}}},
       [](T t) {
         const Tensor to = Clone(t[0]);
         AddInPlace(to, t[1], 2);
         return to;
       },
       WritesToSums},
      {"copy_in_place",
       {{{3, 5}}, {{3, 1}}},
       [](T t) {
         const Tensor to = Clone(t[0]);
         CopyInPlace(to, t[1]);
         return to;
       }},
      {"scale_in_place",
       {{{3, 5}}},
       [](T t) {
         const Tensor to = Clone(t[0]);
         MulInPlace(to, 3);
         return to;
       },
       WritesToSums},
      {"mul_in_place",
       {{{3, 5}}, factor},
       [](T t) {
         NoGrad no_grad;
         const Tensor to = Clone(t[0]);
         MulInPlace(to, t[1]);
         return to;
       },
       WritesToSums},
      {"zero_in_place",
       {{{3, 5}}},
       [](T t) {
         const Tensor to = Clone(t[0]);
         ZeroInPlace(to);
         return to;
       },
       WritesToSums},
      {"fill_in_place",
       {factor},
       [](T t) {
         const Tensor to = Clone(t[0]);
         FillInPlace(to, 7);
         return to;
       }},
  };
}

}  // namespace crosshatch
