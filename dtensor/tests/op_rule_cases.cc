// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/tests/op_rule_cases.h"

#include <vector>

#include "crosshatch/tensor/ops/ops.h"

namespace crosshatch {

std::vector<RuleFamily> RuleFamilies() {
  return {
      {"Pointwise", PointwiseCases()},
      {"InPlace", InPlaceCases()},
      {"Reduction", ReductionCases()},
      {"Statistics", StatisticsCases()},
      {"ScanAndSort", ScanAndSortCases()},
      {"View", ViewCases()},
      {"Window", WindowCases()},
      {"MatMul", MatMulCases()},
      {"Layer", LayerCases()},
      {"Attention", AttentionCases()},
      {"Lookup", LookupCases()},
      {"Index", IndexCases()},
      {"Twice", TwiceCases(), true},
  };
}

namespace {

using T = TensorSpan;
using enum CaseInput::Kind;

}  // namespace

std::vector<RuleCase> TwiceCases() {
  return {
      {"matmul", {{{5, 3}}, {{3, 4}}}, [](T t) { return MatMul(t[0], t[1]); }},
      {"matmul tb",
       {{{2, 5, 3}}, {{4, 3}}},
       [](T t) { return Linear(t[0], t[1]); }},
      {"grouped matmul",
       {{{4, 3}}, {{2, 3, 2}}},
       [](T t) {
         return GroupedMatMul(t[0], t[1], {0, 3, 4});
       }},
      {"conv",
       {{{2, 2, 1, 3}}, {{3, 2, 1, 2}}},
       [](T t) { return Square(Conv2d(t[0], t[1])); },
       [](absl::Span<const Layout> layouts) {
         return !layouts[1].is_sharded(2) && !layouts[1].is_sharded(3);
       }},
      {"add", {{{3, 5}}, {{5}}}, [](T t) { return Square(Add(t[0], t[1])); }},
      {"mul", {{{3, 5}}, {{3, 1}}}, [](T t) { return Mul(t[0], t[1]); }},
      {"div",
       {{{3, 5}, kFraction}, {{5}, kPositive}},
       [](T t) { return Div(t[0], t[1]); }},
      {"sum", {{{3, 5}}}, [](T t) { return Square(Sum(Square(t[0]), {0})); }},
      {"mean",
       {{{3, 5}, kFraction}},
       [](T t) { return Square(Mean(t[0], {1}, true)); }},
      {"norm", {{{3, 5}, kFraction}}, [](T t) { return Norm(t[0], 2, {0}); }},
      {"std",
       {{{5, 2}, kFraction}},
       [](T t) { return Std(t[0], {0}); },
       nullptr,
       10 * kRounding},
      {"logsumexp",
       {{{3, 5}, kFraction}},
       [](T t) { return LogSumExp(t[0], {0}); }},
      {"cumsum", {{{5, 2}}}, [](T t) { return Square(CumSum(t[0], 0)); }},
      {"topk", {{{9, 2}}}, [](T t) { return Square(TopK(t[0], 2, 0).values); }},
      {"exp", {{{3, 5}, kFraction}}, [](T t) { return Exp(t[0]); }},
      {"views",
       {{{3, 2, 2}}},
       [](T t) { return Square(Transpose(Unsqueeze(t[0], 0), 1, 2)); }},
      {"slice, pad and cat",
       {{{3, 5}}, {{2, 5}}},
       [](T t) {
         return Square(Cat({Pad(Slice(t[0], 0, 1, 3), 0, 1, 0), t[1]}, 0));
       }},
      {"expand",
       {{{1, 5}}},
       [](T t) {
         return Square(Expand(t[0], {2, 3, 5}));
       }},
      {"gather and scatter",
       {{{4, 3}}, {{2, 3}, kIds, 4}, {{2, 3}}},
       [](T t) {
         return Square(
             Add(Gather(ScatterAdd(t[0], 0, t[1], t[2]), 0, t[1]), t[2]));
       }},
      {"where",
       {{{3, 5}}, {{3, 5}}},
       [](T t) {
         return Where(Greater(t[0], t[1]), Square(t[0]), Mul(t[0], t[1]));
       }},
  };
}

}  // namespace crosshatch
