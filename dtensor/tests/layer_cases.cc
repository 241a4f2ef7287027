// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/dtensor/dtensor_testutil.h"
#include "crosshatch/dtensor/tests/op_rule_cases.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch {
namespace {

using T = TensorSpan;
using enum CaseInput::Kind;

}  // namespace

std::vector<RuleCase> LayerCases() {
  return {
      {"rms_norm",
       {{{3, 5}, kFraction}, {{5}, kFraction}},
       [](T t) { return RmsNorm(t[0], t[1], 1e-5); }},
      {"rms_norm bare",
       {{{3, 5}, kFraction}},
       [](T t) { return RmsNorm(t[0], Tensor(), 1e-5); }},
      {"softmax", {{{3, 5}, kFraction}}, [](T t) { return Softmax(t[0]); }},
      {"log_softmax",
       {{{3, 5}, kFraction}},
       [](T t) { return LogSoftmax(t[0]); }},
      {"layer_norm",
       {{{3, 5}, kFraction}, {{5}, kFraction}, {{5}, kFraction}},
       [](T t) { return LayerNorm(t[0], t[1], t[2], 1e-5); }},
      {"layer_norm bare",
       {{{3, 5}, kFraction}},
       [](T t) { return LayerNorm(t[0], Tensor(), Tensor(), 1e-5); }},
  };
}

namespace {

// Dropout options for [2, 3, 6, 4] and [2, 5, 3, 4].
constexpr AttentionDropout kDropout = {
    .p = 0.3, .key = 7, .step = 8, .first_row = 4};

}  // namespace

std::vector<RuleCase> AttentionCases() {
  return {
      {"attention",
       {{{2, 3, 6, 4}, kFraction},
        {{2, 3, 3, 4}, kFraction},
        {{2, 3, 3, 4}, kFraction}},
       [](T t) { return CausalAttention(t[0], t[1], t[2], 0.5); }},
      {"attention of all",
       {{{2, 3, 2, 4}, kFraction},
        {{2, 5, 2, 4}, kFraction},
        {{2, 5, 2, 4}, kFraction}},
       [](T t) { return Attention(t[0], t[1], t[2], 0.5); },
       // The case above covers the other layouts.
       [](absl::Span<const Layout> layouts) {
         return layouts[1] == layouts[2];
       }},
      {"attention with a mask, key ranges and slopes",
       {{{2, 3, 6, 4}, kFraction},
        {{2, 5, 3, 4}, kFraction},
        {{2, 5, 3, 4}, kFraction},
        {{2, 6, 3, 5}, kFraction},
        {{2, 3, 2}, kIds, 6},
        {{6}, kFraction}},
       [](T t) {
         return Attention(t[0], t[1], t[2],
                          {.mask = t[3],
                           .key_ranges = ToDType(t[4], kInt32),
                           .slopes = t[5].Detach()});
       }},
      {"attention with plain options",
       {{{2, 3, 4, 4}, kFraction},
        {{2, 5, 2, 4}, kFraction},
        {{2, 5, 2, 4}, kFraction}},
       [](T t) {
         return Attention(t[0], t[1], t[2],
                          {.mask = Fractions({2, 1, 1, 5}, 4),
                           .key_ranges = DocumentKeys({{1, 2}}, {{4, 1}}, 3),
                           .slopes = AlibiSlopes(4)});
       }},
      {"attention with dropout",
       {{{2, 3, 6, 4}, kFraction},
        {{2, 5, 3, 4}, kFraction},
        {{2, 5, 3, 4}, kFraction}},
       [](T t) { return Attention(t[0], t[1], t[2], {.dropout = kDropout}); }},
      {"attention with a mask and dropout",
       {{{2, 3, 4, 4}, kFraction},
        {{2, 5, 2, 4}, kFraction},
        {{2, 5, 2, 4}, kFraction},
        {{4, 1, 5}, kFraction}},
       [](T t) {
         return Attention(t[0], t[1], t[2],
                          {.mask = t[3], .dropout = kDropout});
       }},
      {"rope by rows",
       {{{2, 3, 4, 4}, kFraction}, {{2, 3}, kIds, 3}},
       [](T t) {
         const Tensor cos =
             Embedding(t[1], ReplicatedLike(Fractions({3, 2}, 8), t[1]));
         const Tensor sin =
             Embedding(t[1], ReplicatedLike(Fractions({3, 2}, 9), t[1]));
         return ApplyRope(t[0], cos, sin);
       }},
      {"rope", {{{2, 3, 4, 4}, kFraction}}, [](T t) {
         const Tensor cos = Fractions({3, 2}, 8);
         const Tensor sin = Fractions({3, 2}, 9);
         return ApplyRope(t[0], cos, sin);
       }}};
}

std::vector<RuleCase> LookupCases() {
  return {
      {"embedding",
       {{{5}, kIds, 7}, {{7, 3}}},
       [](T t) { return Embedding(t[0], t[1]); }},
      {"embedding 2d",
       {{{2, 3}, kIds, 4}, {{4, 3}}},
       [](T t) { return Embedding(t[0], t[1]); }},
      {"cross_entropy",
       {{{4, 5}, kFraction}, {{4}, kIds, 5}},
       [](T t) { return CrossEntropy(t[0], t[1]); }},
      {"cross_entropy rows",
       {{{2, 3, 5}, kFraction}, {{2, 3}, kIds, 5}},
       [](T t) {
         using Options = CrossEntropyOptions;
         return CrossEntropy(
             t[0], t[1],
             {.reduction = Options::Reduction::kNone, .ignore_index = 3});
       }},
      {"embedding_grad_into",
       {{{7, 2}, CaseInput::kWhole, 0, /*sums=*/false},
        {{5}, kIds, 7},
        {{5, 2}}},
       [](T t) {
         NoGrad no_grad;
         const Tensor to = Clone(t[0]);
         Apply(EmbeddingGradIntoOp(0, /*accumulate=*/true), {to, t[1], t[2]});
         return to;
       }},
  };
}

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
      {"float8 linear",
       {{{2, 3, 4}}, {{5, 4}}},
       [](T t) {
         return Float8Linear(t[0], t[1], Tensor(), Tensor(),
                             Float8Recipe::kTensorwise);
       },
       nullptr,
       kRounding},
      {"float8 linear by row",
       {{{2, 3, 4}}, {{5, 4}}},
       [](T t) {
         return Float8Linear(t[0], t[1], Tensor(), Tensor(),
                             Float8Recipe::kRowwise);
       },
       nullptr,
       kRounding},
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

std::vector<RuleCase> WindowCases() {
  return {
      {"unfold",
       {{{3, 2, 3, 4}}},
       [](T t) {
         return Unfold(t[0], {2, 3}, {.padding = {1, 0}});
       }},
      {"unfold of few",
       {{{1, 3, 1, 5}}},
       [](T t) {
         return Unfold(t[0], {1, 2}, {.stride = {1, 2}});
       }},
      {"conv",
       {{{2, 3, 2, 3}}, {{5, 3, 1, 2}}, {{5}}},
       [](T t) { return Conv2d(t[0], t[1], t[2]); }},
      {"conv of groups",
       {{{2, 4, 1, 3}}, {{2, 2, 1, 2}}},
       [](T t) { return Conv2d(t[0], t[1], Tensor(), {.groups = 2}); }},
      {"conv of no images",
       {{{0, 3, 5}}, {{2, 3, 2}}},
       [](T t) { return Conv1d(t[0], t[1]); }},
  };
}

}  // namespace crosshatch
