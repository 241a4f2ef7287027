// SPDX-License-Identifier: Apache-2.0
#include <limits>
#include <vector>

#include "crosshatch/dtensor/tests/op_rule_cases.h"
#include "crosshatch/tensor/ops/ops.h"

namespace crosshatch {
namespace {

using T = TensorSpan;
using enum CaseInput::Kind;

}  // namespace

std::vector<RuleCase> StatisticsCases() {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  return {
      {"norm",
       {{{3, 5}, kFraction}},
       [](T t) { return Norm(t[0], 2, {0}); },
       kRounding},
      {"norm 1", {{{3, 5}}}, [](T t) { return Norm(t[0], 1, {1}, true); }},
      {"norm 3",
       {{{3, 5}, kFraction}},
       [](T t) { return Norm(t[0], 3); },
       kRounding},
      {"norm 0.5 with zeros",
       {{{3, 5}}},
       [](T t) { return Norm(t[0], 0.5, {0}); },
       kRounding},
      {"norm 0", {{{3, 5}}}, [](T t) { return Norm(t[0], 0, {0}); }},
      {"norm inf with ties",
       {{{3, 5}}},
       [](T t) { return Norm(t[0], kInf, {0}); },
       kRounding},
      {"norm -inf",
       {{{3, 5}, kFraction}},
       [](T t) { return Norm(t[0], -kInf, {1}); },
       kRounding},
      {"norm of none", {{{0, 3}}}, [](T t) { return Norm(t[0], 2, {0}); }},
      {"var",
       {{{5, 2}, kFraction}},
       [](T t) { return Var(t[0], {0}); },
       kRounding},
      {"var of all",
       {{{3, 4}, kFraction}},
       [](T t) { return Var(t[0], {}, true, 0); },
       kRounding},
      {"std",
       {{{3, 4}, kFraction}},
       [](T t) { return Std(t[0], {1}); },
       kRounding},
      {"logsumexp",
       {{{3, 5}, kFraction}},
       [](T t) { return LogSumExp(Mul(t[0], 30), {0}); },
       kRounding},
      {"logsumexp of all",
       {{{3, 2}}},
       [](T t) { return LogSumExp(t[0], {}, true); },
       kRounding},
      {"any",
       {{{5, 3}}},
       [](T t) { return Any(Greater(t[0], FullLike(t[0], 2)), {0}); }},
      {"all", {{{5, 3}}}, [](T t) { return All(t[0], {0}, true); }},
  };
}

}  // namespace crosshatch
