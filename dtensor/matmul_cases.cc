// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "crosshatch/dtensor/op_rule_cases.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch {
namespace {

using T = TensorSpan;

}  // namespace

std::vector<RuleCase> MatMulCases() {
  return {
      {"matmul", {{{5, 3}}, {{3, 4}}}, [](T t) { return MatMul(t[0], t[1]); }},
      {"matmul ta",
       {{{3, 5}}, {{3, 4}}},
       [](T t) { return MatMul(t[0], t[1], true, false); }},
      {"matmul tb",
       {{{5, 3}}, {{4, 3}}},
       [](T t) { return MatMul(t[0], t[1], false, true); }},
      {"linear",
       {{{2, 3, 5}}, {{4, 5}}},
       [](T t) { return Linear(t[0], t[1]); }},
      {"bmm",
       {{{2, 3, 4}}, {{2, 4, 3}}},
       [](T t) { return MatMul(t[0], t[1]); }},
      {"sum batch",
       {{{2, 3, 4}}, {{2, 3, 5}}},
       [](T t) {
         return MatMul(t[0], t[1], {.transpose_a = true, .sum_batch = true});
       }},
      {"of none", {{{4, 0}}, {{0, 3}}}, [](T t) { return MatMul(t[0], t[1]); }},
      {"linear with bias",
       {{{3, 5}}, {{4, 5}}, {{4}}},
       [](T t) { return Linear(t[0], t[1], t[2]); }},
      {"matmul_into",
       {{{4, 5}}, {{2, 3, 4}}, {{2, 3, 5}}},
       [](T t) {
         NoGrad no_grad;
         const Tensor to = Clone(t[0]);
         const MatMulSpec spec = {.transpose_a = true, .sum_batch = true};
         MatMulInto(to, t[1], t[2], spec, /*accumulate=*/true);
         return to;
       }},
  };
}

}  // namespace crosshatch
