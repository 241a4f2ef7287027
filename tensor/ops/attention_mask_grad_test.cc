// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/ops/attention_mask_grad.h"

#include <cmath>
#include <limits>
#include <vector>

#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/gradcheck_testutil.h"
#include "crosshatch/tensor/ops/attention.h"
#include "crosshatch/tensor/ops/cast.h"
#include "crosshatch/tensor/ops/documents.h"
#include "crosshatch/tensor/ops/pointwise.h"
#include "crosshatch/tensor/ops/reduce.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Eq;

// Two rows, three queries of two heads and one key head, four keys.
std::vector<TestInput> Small() {
  return {RandomInput({2, 3, 2, 2}, 1), RandomInput({2, 4, 1, 2}, 2),
          RandomInput({2, 4, 1, 2}, 3)};
}

bool HasGradient(const Shape& mask, AttentionOptions options) {
  std::vector<TestInput> inputs = Small();
  inputs.push_back(RandomInput(mask, 4));
  return Gradcheck(
      [&](TensorSpan in) {
        options.mask = in[3];
        return Attention(in[0], in[1], in[2], options);
      },
      inputs);
}

TEST(AttentionMaskGradTest, OtherKeyHeadsAreAnotherCall) {
  const auto key = [](const AttentionKeyHeads& key_heads) {
    OpKey key;
    AttentionMaskGradOp({}, key_heads).AppendKey(key);
    return key;
  };
  EXPECT_NE(key({}), key({.group = 2}));
  EXPECT_NE(key({.first_query = 2, .group = 2}), key({.group = 2}));
}

TEST(AttentionMaskGradTest, IsThatOfDifferences) {
  for (const Shape& sizes :
       {Shape{}, Shape{4}, Shape{3, 1}, Shape{3, 4}, Shape{2, 1, 4},
        Shape{2, 1, 1, 4}, Shape{1, 2, 3, 4}, Shape{2, 2, 3, 4}}) {
    EXPECT_TRUE(HasGradient(sizes, {.scale = 0.5})) << ToString(sizes);
  }
}

TEST(AttentionMaskGradTest, HoldsWithAllOtherOptions) {
  EXPECT_TRUE(HasGradient({2, 3, 4}, {.causal = true}));
  EXPECT_TRUE(HasGradient({2, 3, 4}, {.causal = true, .window = 2}));
  EXPECT_TRUE(HasGradient({2, 3, 4}, {.window = 1}));
  // A query without keys, and different keys per row.
  const Tensor ranges =
      FromValues<int32_t>({2, 3, 2}, {0, 1, 1, 3, 2, 2, 0, 4, 1, 4, 3, 4});
  EXPECT_TRUE(HasGradient({2, 1, 3, 4}, {.key_ranges = ranges}));
  EXPECT_TRUE(HasGradient({2, 3, 4},
                          {.slopes = FromValues<float>({2}, {0.5f, 0.25f})}));
  EXPECT_TRUE(HasGradient({2, 2, 3, 4}, {.dropout = {.p = 0.4,
                                                     .key = 11,
                                                     .step = 12,
                                                     .first_row = 3,
                                                     .first_head = 4,
                                                     .heads = 7}}));
  EXPECT_TRUE(HasGradient({3, 4}, {.dropout = {.p = 1}}));
}

TensorList SmallTensors(DType dtype = kFloat64) {
  TensorList tensors;
  for (const TestInput& input : Small()) {
    tensors.push_back(MakeInput(input, TestLayout::kContiguous, dtype));
  }
  return tensors;
}

Tensor GradientOf(const TensorList& qkv, Tensor mask,
                  const AttentionOptions& given = {}) {
  AttentionOptions options = given;
  options.mask = mask.set_requires_grad(true);
  const Tensor out = Attention(qkv[0], qkv[1], qkv[2], options);
  EXPECT_TRUE(Backward(Sum(Square(out))).ok());
  return mask.grad();
}

TEST(AttentionMaskGradTest, IsZeroWhereNothingIsSeen) {
  const double none = -std::numeric_limits<double>::infinity();
  const Tensor grad = GradientOf(
      SmallTensors(), FromValues<double>({3, 4}, {0, none, 1, 2,  //
                                                  none, none, none, none, none,
                                                  none, 3, none}));
  const std::vector<double> values = grad.ToVector<double>();
  EXPECT_EQ(values[1], 0);
  EXPECT_NE(values[0], 0);
  EXPECT_THAT(std::vector<double>(values.begin() + 4, values.end()),
              Each(Eq(0)));
  // Without queries, keys or rows.
  for (const Shape& sizes : {Shape{1, 0, 4}, Shape{1, 3, 0}, Shape{0, 3, 4}}) {
    const Tensor of_nothing =
        GradientOf({Zeros({sizes[0], sizes[1], 1, 2}, kFloat64),
                    Zeros({sizes[0], sizes[2], 1, 2}, kFloat64),
                    Zeros({sizes[0], sizes[2], 1, 2}, kFloat64)},
                   Zeros({1, 1}, kFloat64));
    EXPECT_THAT(of_nothing.ToVector<double>(), ElementsAre(0));
  }
}

TEST(AttentionMaskGradTest, IsNoNumberWhereScoresAreNone) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const TensorList qkv = SmallTensors();
  const Tensor mask = FromValues<double>({3, 4}, {0, 0, 0, 0,    //
                                                  0, nan, 0, 0,  //
                                                  0, 0, 0, 0})
                          .set_requires_grad(true);
  // The gradient of the output is 1 everywhere.
  const Tensor loss = Sum(Attention(qkv[0], qkv[1], qkv[2], {.mask = mask}));
  ASSERT_TRUE(Backward(loss).ok());
  const std::vector<double> values = mask.grad().ToVector<double>();
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(std::isnan(values[i]), i / 4 == 1) << i;
  }
}

TEST(AttentionMaskGradTest, ComputesInTheWiderDType) {
  const TensorList narrow = SmallTensors(kBFloat16);
  TensorList wide;
  for (const Tensor& t : narrow) wide.push_back(ToDType(t, kFloat32));
  const Tensor mask =
      MakeInput(RandomInput({3, 4}, 4), TestLayout::kContiguous, kBFloat16);
  const Tensor grad = GradientOf(narrow, mask.Detach());
  EXPECT_EQ(grad.dtype(), kBFloat16);
  const std::vector<float> expected =
      GradientOf(wide, ToDType(mask, kFloat32)).ToVector<float>();
  const std::vector<float> got = grad.ToVector<float>();
  // out and its gradient, of at most 2, are rounded to 8 bits. An element of
  // the result sums 4 products of these for 2 rows of 2 heads, and is rounded
  // itself.
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_NEAR(got[i], expected[i], 0x1p-8 * 2 * 4 * 4) << i;
  }
}

TEST(AttentionMaskGradTest, IsDifferentiableOnce) {
  const TensorList qkv = SmallTensors();
  const Tensor mask = Zeros({4}, kFloat64).set_requires_grad(true);
  const Tensor loss = Sum(Attention(qkv[0], qkv[1], qkv[2], {.mask = mask}));
  EXPECT_DEATH(Backward(loss, {.create_graph = true}).IgnoreError(),
               "attention is differentiable once");
}

}  // namespace
}  // namespace crosshatch
