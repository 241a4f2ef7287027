// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "crosshatch/dtensor/tests/op_rule_cases.h"
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
      {"grouped matmul",
       {{{5, 3}}, {{3, 3, 4}}},
       [](T t) {
         return GroupedMatMul(t[0], t[1], {0, 2, 2, 5});
       }},
      {"grouped matmul tb",
       {{{5, 3}}, {{2, 4, 3}}},
       [](T t) {
         return GroupedMatMul(t[0], t[1], {0, 4, 5}, true);
       }},
      {"grouped outer",
       {{{5, 3}}, {{5, 2}}},
       [](T t) {
         return GroupedOuter(t[0], t[1], {0, 2, 5});
       }},
      {"dot", {{{5}}, {{5}}}, [](T t) { return Dot(t[0], t[1]); }},
      {"matvec", {{{2, 3, 4}}, {{4}}}, [](T t) { return MatVec(t[0], t[1]); }},
      {"addmm",
       {{{4}}, {{3, 5}}, {{5, 4}}},
       [](T t) { return AddMM(t[0], t[1], t[2], {.beta = 2, .alpha = 3}); }},
      {"addmm of batches",
       {{{2, 3, 4}}, {{2, 3, 2}}, {{2, 2, 4}}},
       [](T t) { return BAddBMM(t[0], t[1], t[2]); }},
      {"matmul_into",
       {{{4, 5}}, {{2, 3, 4}}, {{2, 3, 5}}},
       [](T t) {
         NoGrad no_grad;
         const Tensor to = Clone(t[0]);
         const MatMulSpec spec = {.transpose_a = true, .sum_batch = true};
         MatMulInto(to, t[1], t[2], spec, /*accumulate=*/true);
         return to;
       },
       0,
       // Nothing can be added to pending factors.
       [](absl::Span<const Layout> layouts) {
         for (const AxisState& state : layouts[0].axis_states()) {
           if (state.is_partial() && state.op == ReduceOp::kProduct) {
             return false;
           }
         }
         return true;
       }},
  };
}

}  // namespace crosshatch
