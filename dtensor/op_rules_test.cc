// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/op_rules.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/dtensor/dtensor_testutil.h"
#include "crosshatch/dtensor/redistribute.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/ops.h"

namespace crosshatch {
namespace {

// Every op, on every layout of its inputs, beside the same op on plain tensors;
// with the gradients of all floating point inputs.

struct Input {
  enum Kind { kWhole, kFraction, kPositive, kIds };
  Shape sizes;
  Kind kind = kWhole;
  int ids = 0;  // kIds: below this
};

struct Case {
  const char* name;
  std::vector<Input> inputs;
  std::function<Tensor(TensorSpan)> run;
  // 0 where all arithmetic is on small whole numbers.
  double tolerance = 0;
};

constexpr double kRounding = 2e-5;

Tensor Make(const Input& input, int seed) {
  switch (input.kind) {
    case Input::kWhole:
      return Numbers(input.sizes, seed);
    case Input::kFraction:
      return Fractions(input.sizes, seed);
    case Input::kPositive:
      return Add(Fractions(input.sizes, seed), 1.5);
    case Input::kIds: {
      std::vector<int64_t> ids(NumElements(input.sizes));
      for (size_t i = 0; i < ids.size(); ++i) {
        ids[i] = static_cast<int64_t>((i * 7 + seed) % input.ids);
      }
      return FromValues<int64_t>(input.sizes, ids);
    }
  }
  return Tensor();
}

constexpr Input::Kind kFraction = Input::kFraction;
constexpr Input::Kind kPositive = Input::kPositive;
constexpr Input::Kind kIds = Input::kIds;

std::vector<Case> PointwiseCases() {
  using T = TensorSpan;
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
       [](T t) { return Div(t[0], t[1]); },
       kRounding},
      {"maximum",
       {{{3, 5}}, {{3, 5}}},
       [](T t) { return Maximum(t[0], t[1]); }},
      {"scalars",
       {{{3, 5}}},
       [](T t) { return Sub(5, Add(Mul(Neg(t[0]), 2), 3)); }},
      {"exp", {{{3, 5}, kFraction}}, [](T t) { return Exp(t[0]); }, kRounding},
      {"silu", {{{5}, kFraction}}, [](T t) { return Silu(t[0]); }, kRounding},
      {"gelu", {{{5}, kFraction}}, [](T t) { return Gelu(t[0]); }, kRounding},
      {"relu", {{{7}}}, [](T t) { return Relu(t[0]); }},
      {"where",
       {{{3, 5}}, {{3, 5}}},
       [](T t) { return Where(Greater(t[0], t[1]), t[0], Mul(t[1], 2)); }},
      {"swiglu",
       {{{3, 5}, kFraction}, {{3, 5}, kFraction}},
       [](T t) { return SwiGlu(t[0], t[1]); },
       kRounding},
      {"cast",
       {{{3, 5}}},
       [](T t) { return ToDType(ToDType(t[0], kBFloat16), kFloat32); }},
      {"clone", {{{3, 5}}}, [](T t) { return Clone(t[0]); }},
      {"full_like", {{{3, 5}}}, [](T t) { return Add(t[0], OnesLike(t[0])); }},
      {"no dims", {{{}}, {{3}}}, [](T t) { return Mul(t[0], t[1]); }},
      {"empty", {{{0, 3}}, {{3}}}, [](T t) { return Mul(t[0], t[1]); }},
  };
}

std::vector<Case> ReductionCases() {
  using T = TensorSpan;
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
  };
}

std::vector<Case> MoveCases() {
  using T = TensorSpan;
  return {
      {"transpose", {{{3, 5}}}, [](T t) { return Transpose(t[0], 0, 1); }},
      {"permute",
       {{{2, 3, 5}}},
       [](T t) {
         return Permute(t[0], {2, 0, 1});
       }},
      {"slice", {{{5, 3}}}, [](T t) { return Slice(t[0], 0, 1, 4); }},
      {"slice all", {{{5, 3}}}, [](T t) { return Slice(t[0], 0, 0, 5); }},
      {"expand",
       {{{1, 3}}},
       [](T t) {
         return Expand(t[0], {2, 4, 3});
       }},
      {"unsqueeze", {{{3, 5}}}, [](T t) { return Unsqueeze(t[0], 1); }},
      {"cat",
       {{{2, 3}}, {{4, 3}}},
       [](T t) {
         return Cat({t[0], t[1]}, 0);
       }},
      {"pad", {{{3, 2}}}, [](T t) { return Pad(t[0], 1, 1, 2); }},
  };
}

std::vector<Case> MatMulCases() {
  using T = TensorSpan;
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
  };
}

std::vector<Case> BiasCases() {
  using T = TensorSpan;
  return {{"linear with bias", {{{3, 5}}, {{4, 5}}, {{4}}}, [](T t) {
             return Linear(t[0], t[1], t[2]);
           }}};
}

std::vector<Case> LayerCases() {
  using T = TensorSpan;
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
  };
}

std::vector<Case> LayerNormCases() {
  using T = TensorSpan;
  return {{"layer_norm",
           {{{3, 5}, kFraction}, {{5}, kFraction}, {{5}, kFraction}},
           [](T t) { return LayerNorm(t[0], t[1], t[2], 1e-5); },
           kRounding}};
}

std::vector<Case> AttentionCases() {
  using T = TensorSpan;
  return {{"attention",
           {{{2, 3, 6, 4}, kFraction},
            {{2, 3, 3, 4}, kFraction},
            {{2, 3, 3, 4}, kFraction}},
           [](T t) { return CausalAttention(t[0], t[1], t[2], 0.5); },
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

// The result and the gradients of its weighted sum.
struct Outcome {
  Tensor result;
  std::vector<Tensor> grads;
};

Outcome Run(const Case& c, std::vector<Tensor> inputs) {
  for (Tensor& t : inputs) {
    if (IsFloatingPoint(t.dtype())) t.set_requires_grad(true);
  }
  Outcome outcome;
  outcome.result = c.run(inputs);
  const Tensor weight =
      ReplicatedLike(Numbers(outcome.result.sizes(), 99), outcome.result);
  const absl::Status status = Backward(Sum(Mul(outcome.result, weight)));
  EXPECT_TRUE(status.ok()) << status;
  for (const Tensor& t : inputs) {
    if (IsFloatingPoint(t.dtype())) outcome.grads.push_back(t.grad());
  }
  return outcome;
}

// `stride` > 1 takes one combination of layouts in so many.
void CheckCases(const std::vector<int>& shape, const std::vector<Case>& cases,
                size_t stride = 1) {
  OnMesh(shape, [&](const DeviceMesh& mesh, Complaints& complaints) {
    for (const Case& c : cases) {
      std::vector<Tensor> dense;
      std::vector<std::vector<Layout>> layouts;
      size_t combinations = 1;
      for (const Input& input : c.inputs) {
        dense.push_back(Make(input, static_cast<int>(dense.size()) + 1));
        layouts.push_back(AllLayouts(mesh.layout(),
                                     static_cast<int>(input.sizes.size()),
                                     input.kind != kIds));
        combinations *= layouts.back().size();
      }
      const Outcome expected = Run(c, dense);
      size_t begin = 0;
      if (stride > 1) begin = combinations % stride / 2;
      for (size_t at = begin; at < combinations; at += stride) {
        std::vector<Tensor> inputs;
        std::string name = c.name;
        size_t rest = at;
        for (size_t i = 0; i < dense.size(); ++i) {
          const Layout& layout = layouts[i][rest % layouts[i].size()];
          rest /= layouts[i].size();
          inputs.push_back(Spread(dense[i], mesh, layout));
          absl::StrAppend(&name, " ", layout.ToString());
        }
        const Outcome actual = Run(c, inputs);
        std::string wrong =
            Differs(actual.result, expected.result, c.tolerance);
        for (size_t i = 0; wrong.empty() && i < actual.grads.size(); ++i) {
          wrong = Differs(actual.grads[i], expected.grads[i], c.tolerance);
          if (!wrong.empty()) wrong = absl::StrCat("gradient ", i, ": ", wrong);
        }
        for (size_t i = 0, g = 0; wrong.empty() && i < inputs.size(); ++i) {
          if (!IsFloatingPoint(inputs[i].dtype())) continue;
          if (LayoutOf(actual.grads[g++]) != LayoutOf(inputs[i])) {
            wrong = "a gradient not of its leaf's layout";
          }
        }
        if (!wrong.empty() &&
            !complaints.Add(absl::StrCat(name, ": ", wrong))) {
          return;
        }
      }
    }
  });
}

class OpRules : public testing::TestWithParam<std::vector<int>> {
 protected:
  // All combinations on one axis, a sample on two.
  size_t Stride(size_t sample) const {
    return GetParam().size() == 1 ? 1 : sample;
  }
};

TEST_P(OpRules, Pointwise) {
  CheckCases(GetParam(), PointwiseCases(), Stride(7));
}
TEST_P(OpRules, Reductions) { CheckCases(GetParam(), ReductionCases()); }
TEST_P(OpRules, Moves) { CheckCases(GetParam(), MoveCases(), Stride(5)); }
TEST_P(OpRules, MatMul) { CheckCases(GetParam(), MatMulCases(), Stride(11)); }
TEST_P(OpRules, Bias) { CheckCases(GetParam(), BiasCases(), Stride(37)); }
TEST_P(OpRules, Layers) { CheckCases(GetParam(), LayerCases(), Stride(5)); }
TEST_P(OpRules, LayerNorm) {
  CheckCases(GetParam(), LayerNormCases(), Stride(13));
}
TEST_P(OpRules, Attention) {
  CheckCases(GetParam(), AttentionCases(), Stride(997));
}

INSTANTIATE_TEST_SUITE_P(Meshes, OpRules,
                         testing::Values(std::vector<int>{2},
                                         std::vector<int>{3},
                                         std::vector<int>{2, 2}),
                         [](const auto& info) {
                           std::string name = "Mesh";
                           for (int n : info.param) absl::StrAppend(&name, n);
                           return name;
                         });

}  // namespace
}  // namespace crosshatch
