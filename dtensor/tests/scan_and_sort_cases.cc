// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <vector>

#include "crosshatch/dtensor/tests/op_rule_cases.h"
#include "crosshatch/tensor/ops/ops.h"

namespace crosshatch {
namespace {

using T = TensorSpan;
using enum CaseInput::Kind;

}  // namespace

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
      {"sort",
       {{{5, 3}, kFraction}},
       [](T t) { return Sort(t[0], 0).values; },
       kRounding},
      {"sort with ties",
       {{{3, 7}}},
       [](T t) { return Sort(t[0], 1, true).indices; }},
      {"sort of one dim",
       {{{7}, kFraction}},
       [](T t) { return Sort(t[0], 0, true).values; },
       kRounding},
      {"sort of none", {{{0, 3}}}, [](T t) { return Sort(t[0], 0).values; }},
      {"topk",
       {{{9, 2}, kFraction}},
       [](T t) { return TopK(t[0], 1, 0).values; },
       kRounding},
      {"topk of many",
       {{{5, 3}, kFraction}},
       [](T t) { return TopK(t[0], 4, 0, false).values; },
       kRounding},
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
