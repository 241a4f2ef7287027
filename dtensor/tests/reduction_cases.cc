// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <limits>
#include <vector>

#include "crosshatch/dtensor/tests/op_rule_cases.h"
#include "crosshatch/tensor/ops/ops.h"

namespace crosshatch {
namespace {

using T = TensorSpan;
using enum CaseInput::Kind;

}  // namespace

std::vector<RuleCase> ReductionCases() {
  return {
      {"sum", {{{3, 5}}}, [](T t) { return Sum(t[0]); }},
      {"sum rows", {{{3, 5}}}, [](T t) { return Sum(t[0], {0}); }},
      {"sum columns", {{{3, 5}}}, [](T t) { return Sum(t[0], {1}, true); }},
      {"sum of none", {{{0, 3}}}, [](T t) { return Sum(t[0], {0}); }},
      {"mean", {{{3, 5}, kFraction}}, [](T t) { return Mean(t[0]); }},
      {"mean rows",
       {{{5, 2}, kFraction}},
       [](T t) { return Mean(t[0], {0}, true); }},
      {"prod", {{{2, 3}, kPositive}}, [](T t) { return Prod(t[0], {1}); }},
      {"max", {{{3, 5}, kFraction}}, [](T t) { return Max(t[0], {1}); }},
      {"min", {{{3, 5}, kFraction}}, [](T t) { return Min(t[0]); }},
      {"sum of squares",
       {{{3, 5}}},
       [](T t) { return SumOfSquares(t[0], {0}); }},
      {"sum to",
       {{{2, 3, 5}}},
       [](T t) {
         return SumTo(t[0], {3, 1});
       }},
      {"argmax", {{{3, 5}, kFraction}}, [](T t) { return ArgMax(t[0], 1); }},
      {"argmin",
       {{{3, 5}, kFraction}},
       [](T t) { return ArgMin(t[0], 0, true); }},
      {"argmax with ties", {{{7, 3}}}, [](T t) { return ArgMax(t[0], 0); }},
      {"argmax of one", {{{1, 2}}}, [](T t) { return ArgMax(t[0], 0); }},
      {"argmax of empty rows", {{{3, 0}}}, [](T t) { return ArgMax(t[0], 0); }},
      {"prod rows", {{{5, 2}, kPositive}}, [](T t) { return Prod(t[0], {0}); }},
      {"max with ties",
       {{{7, 2}}},
       [](T t) { return Max(t[0], {0}); },
       nullptr,
       kRounding},
      // Some ranks have no row.
      {"max of int32",
       {{{2, 3}}},
       [](T t) { return Max(ToDType(t[0], kInt32), {0}); }},
      {"min of int32",
       {{{2, 3}}},
       [](T t) { return Min(ToDType(t[0], kInt32), {0}); }},
      {"max of bool",
       {{{5, 2}}},
       [](T t) { return Max(Greater(t[0], FullLike(t[0], 1)), {0}); }},
  };
}

std::vector<RuleCase> StatisticsCases() {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  return {
      {"norm", {{{3, 5}, kFraction}}, [](T t) { return Norm(t[0], 2, {0}); }},
      {"norm 1", {{{3, 5}}}, [](T t) { return Norm(t[0], 1, {1}, true); }},
      {"norm 3", {{{3, 5}, kFraction}}, [](T t) { return Norm(t[0], 3); }},
      {"norm 0.5 with zeros",
       {{{3, 5}}},
       [](T t) { return Norm(t[0], 0.5, {0}); },
       nullptr,
       kRounding},
      {"norm 0", {{{3, 5}}}, [](T t) { return Norm(t[0], 0, {0}); }},
      {"norm inf with ties",
       {{{3, 5}}},
       [](T t) { return Norm(t[0], kInf, {0}); },
       nullptr,
       kRounding},
      {"norm -inf",
       {{{3, 5}, kFraction}},
       [](T t) { return Norm(t[0], -kInf, {1}); }},
      {"norm of none", {{{0, 3}}}, [](T t) { return Norm(t[0], 2, {0}); }},
      {"var", {{{5, 2}, kFraction}}, [](T t) { return Var(t[0], {0}); }},
      {"var of all",
       {{{3, 4}, kFraction}},
       [](T t) { return Var(t[0], {}, true, 0); }},
      {"std", {{{3, 4}, kFraction}}, [](T t) { return Std(t[0], {1}); }},
      {"logsumexp",
       {{{3, 5}, kFraction}},
       [](T t) { return LogSumExp(Mul(t[0], 30), {0}); }},
      {"logsumexp of all",
       {{{3, 2}}},
       [](T t) { return LogSumExp(t[0], {}, true); },
       nullptr,
       kRounding},
      {"any",
       {{{5, 3}}},
       [](T t) { return Any(Greater(t[0], FullLike(t[0], 2)), {0}); }},
      {"all", {{{5, 3}}}, [](T t) { return All(t[0], {0}, true); }},
  };
}

std::vector<RuleCase> ScanAndSortCases() {
  return {
      {"cumsum", {{{5, 3}}}, [](T t) { return CumSum(t[0], 0); }},
      {"cumsum columns", {{{2, 7}}}, [](T t) { return CumSum(t[0], 1); }},
      {"cumsum of few", {{{2, 3}}}, [](T t) { return CumSum(t[0], 0); }},
      {"cumsum of none", {{{0, 3}}}, [](T t) { return CumSum(t[0], 0); }},
      {"cumsum of no columns", {{{3, 0}}}, [](T t) { return CumSum(t[0], 0); }},
      {"cumsum of bf16",
       {{{7}}},
       [](T t) {
         return ToDType(CumSum(ToDType(t[0], kBFloat16), 0), kFloat32);
       }},
      {"cumsum of integers",
       {{{7}, kIds, 5}},
       [](T t) { return CumSum(t[0], 0); }},
      {"sort", {{{5, 3}, kFraction}}, [](T t) { return Sort(t[0], 0).values; }},
      {"sort with ties",
       {{{3, 7}}},
       [](T t) { return Sort(t[0], 1, true).indices; }},
      {"sort of one dim",
       {{{7}, kFraction}},
       [](T t) { return Sort(t[0], 0, true).values; }},
      {"sort of none", {{{0, 3}}}, [](T t) { return Sort(t[0], 0).values; }},
      {"topk",
       {{{9, 2}, kFraction}},
       [](T t) { return TopK(t[0], 1, 0).values; }},
      {"topk of many",
       {{{5, 3}, kFraction}},
       [](T t) { return TopK(t[0], 4, 0, false).values; }},
      {"topk with ties",
       {{{2, 13}}},
       [](T t) { return TopK(t[0], 3, 1).indices; }},
      {"topk of smallest with ties",
       {{{13, 2}}},
       [](T t) { return TopK(t[0], 2, 0, false).indices; }},
      {"topk by index",
       {{{13}}},
       [](T t) { return TopK(t[0], 3, 0, true, false).indices; }},
      {"topk of integers",
       {{{13}, kIds, 6}},
       [](T t) { return TopK(t[0], 2, 0).values; }},
      {"topk of no elements",
       {{{5, 2}}},
       [](T t) { return TopK(t[0], 0, 0).values; }},
  };
}

}  // namespace crosshatch
