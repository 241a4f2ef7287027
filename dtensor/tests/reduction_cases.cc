// SPDX-License-Identifier: Apache-2.0
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
      {"mean",
       {{{3, 5}, kFraction}},
       [](T t) { return Mean(t[0]); },
       kRounding},
      {"mean rows",
       {{{5, 2}, kFraction}},
       [](T t) { return Mean(t[0], {0}, true); },
       kRounding},
      {"prod",
       {{{2, 3}, kPositive}},
       [](T t) { return Prod(t[0], {1}); },
       kRounding},
      {"max",
       {{{3, 5}, kFraction}},
       [](T t) { return Max(t[0], {1}); },
       kRounding},
      {"min", {{{3, 5}, kFraction}}, [](T t) { return Min(t[0]); }, kRounding},
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
      {"prod rows",
       {{{5, 2}, kPositive}},
       [](T t) { return Prod(t[0], {0}); },
       kRounding},
      {"max with ties",
       {{{7, 2}}},
       [](T t) { return Max(t[0], {0}); },
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

}  // namespace crosshatch
