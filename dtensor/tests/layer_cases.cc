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
       [](T t) { return RmsNorm(t[0], t[1], 1e-5); },
       kRounding},
      {"rms_norm bare",
       {{{3, 5}, kFraction}},
       [](T t) { return RmsNorm(t[0], Tensor(), 1e-5); },
       kRounding},
      {"softmax",
       {{{3, 5}, kFraction}},
       [](T t) { return Softmax(t[0]); },
       kRounding},
      {"log_softmax",
       {{{3, 5}, kFraction}},
       [](T t) { return LogSoftmax(t[0]); },
       kRounding},
      {"layer_norm",
       {{{3, 5}, kFraction}, {{5}, kFraction}, {{5}, kFraction}},
       [](T t) { return LayerNorm(t[0], t[1], t[2], 1e-5); },
       kRounding},
      {"layer_norm bare",
       {{{3, 5}, kFraction}},
       [](T t) { return LayerNorm(t[0], Tensor(), Tensor(), 1e-5); },
       kRounding},
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
       [](T t) { return CausalAttention(t[0], t[1], t[2], 0.5); },
       kRounding},
      {"attention of all",
       {{{2, 3, 2, 4}, kFraction},
        {{2, 5, 2, 4}, kFraction},
        {{2, 5, 2, 4}, kFraction}},
       [](T t) { return Attention(t[0], t[1], t[2], 0.5); },
       kRounding,
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
       },
       kRounding},
      {"attention with plain options",
       {{{2, 3, 4, 4}, kFraction},
        {{2, 5, 2, 4}, kFraction},
        {{2, 5, 2, 4}, kFraction}},
       [](T t) {
         return Attention(t[0], t[1], t[2],
                          {.mask = Fractions({2, 1, 1, 5}, 4),
                           .key_ranges = DocumentKeys({{1, 2}}, {{4, 1}}, 3),
                           .slopes = AlibiSlopes(4)});
       },
       kRounding},
      {"attention with dropout",
       {{{2, 3, 6, 4}, kFraction},
        {{2, 5, 3, 4}, kFraction},
        {{2, 5, 3, 4}, kFraction}},
       [](T t) { return Attention(t[0], t[1], t[2], {.dropout = kDropout}); },
       kRounding},
      {"attention with a mask and dropout",
       {{{2, 3, 4, 4}, kFraction},
        {{2, 5, 2, 4}, kFraction},
        {{2, 5, 2, 4}, kFraction},
        {{4, 1, 5}, kFraction}},
       [](T t) {
         return Attention(t[0], t[1], t[2],
                          {.mask = t[3], .dropout = kDropout});
       },
       kRounding},
      {"rope by rows",
       {{{2, 3, 4, 4}, kFraction}, {{2, 3}, kIds, 3}},
       [](T t) {
         const Tensor cos =
             Embedding(t[1], ReplicatedLike(Fractions({3, 2}, 8), t[1]));
         const Tensor sin =
             Embedding(t[1], ReplicatedLike(Fractions({3, 2}, 9), t[1]));
         return ApplyRope(t[0], cos, sin);
       },
       kRounding},
      {"rope",
       {{{2, 3, 4, 4}, kFraction}},
       [](T t) {
         const Tensor cos = Fractions({3, 2}, 8);
         const Tensor sin = Fractions({3, 2}, 9);
         return ApplyRope(t[0], cos, sin);
       },
       kRounding}};
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
       [](T t) { return CrossEntropy(t[0], t[1]); },
       kRounding},
      {"cross_entropy rows",
       {{{2, 3, 5}, kFraction}, {{2, 3}, kIds, 5}},
       [](T t) {
         using Options = CrossEntropyOptions;
         return CrossEntropy(
             t[0], t[1],
             {.reduction = Options::Reduction::kNone, .ignore_index = 3});
       },
       kRounding},
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

}  // namespace crosshatch
