// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/layers/linear.h"

#include <cmath>
#include <memory>
#include <vector>

#include "crosshatch/nn/layers/embedding.h"
#include "crosshatch/nn/layers/norm.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/ops.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::nn {
namespace {

using ::testing::ElementsAre;
using ::testing::FloatEq;
using ::testing::HasSubstr;

TEST(LinearTest, MultipliesByItsWeight) {
  Linear linear(3, 2, {.bias = true});
  linear.weight()->set_data(
      FromValues<float>(Shape{2, 3}, {1, 2, 3, -1, 0, 1}));
  linear.bias()->set_data(FromValues<float>(Shape{2}, {10, 20}));
  const Tensor x = FromValues<float>(Shape{2, 1, 3}, {1, 1, 1, 1, 2, 3});
  const Tensor y = linear.Forward(x);
  EXPECT_EQ(y.sizes(), (Shape{2, 1, 2}));
  EXPECT_THAT(y.ToVector<float>(), ElementsAre(16, 20, 24, 22));
  EXPECT_EQ(linear.NamedParameters().size(), 2u);
  EXPECT_EQ(linear.Forward(Zeros({0, 1, 3})).sizes(), (Shape{0, 1, 2}));
}

TEST(LinearTest, ComputesWithTheGatheredWeight) {
  Linear linear(2, 1);
  EXPECT_EQ(linear.bias(), nullptr);
  linear.weight()->set_gathered(FromValues<float>(Shape{1, 2}, {3, 4}));
  EXPECT_THAT(linear.Forward(Ones({1, 2})).ToVector<float>(), ElementsAre(7));
}

// Values that are exact in bfloat16 give equal results in any dtype.
TEST(LinearTest, KeepsTheDTypeOfTheInput) {
  const DType dtypes[] = {kFloat32, kFloat64, kBFloat16, kFloat16};
  for (const DType of_x : dtypes) {
    for (const DType of_weight : dtypes) {
      Linear linear(3, 2, {.bias = true});
      const Tensor weight =
          ToDType(FromValues<float>(Shape{2, 3}, {1, 2, 3, -1, 0, 1}),
                  of_weight)
              .set_requires_grad(true);
      linear.weight()->set_gathered(weight);
      // The bias stays in float32, as it was created.
      linear.bias()->set_data(FromValues<float>(Shape{2}, {10, 20}));
      const Tensor x = ToDType(FromValues<float>(Shape{1, 3}, {1, 2, 3}), of_x)
                           .set_requires_grad(true);
      const Tensor y = linear.Forward(x);
      EXPECT_EQ(y.dtype(), of_x);
      EXPECT_THAT(y.ToVector<double>(), ElementsAre(24, 22));
      ASSERT_TRUE(Backward(Sum(y)).ok());
      EXPECT_EQ(x.grad().dtype(), of_x);
      EXPECT_THAT(x.grad().ToVector<double>(), ElementsAre(0, 2, 4));
      EXPECT_EQ(weight.grad().dtype(), of_weight);
      EXPECT_THAT(weight.grad().ToVector<double>(),
                  ElementsAre(1, 2, 3, 1, 2, 3));
      EXPECT_EQ(linear.bias()->grad().dtype(), kFloat32);
    }
  }
}

TEST(LinearDeathTest, RefusesAWeightThatIsNull) {
  EXPECT_DEATH(Linear(std::shared_ptr<Parameter>()),
               HasSubstr("nn::Linear: the weight is null"));
}

TEST(EmbeddingTest, LooksUpRows) {
  Embedding embedding(3, 2);
  embedding.weight()->set_data(
      FromValues<float>(Shape{3, 2}, {0, 1, 10, 11, 20, 21}));
  const Tensor ids = FromValues<int64_t>(Shape{1, 3}, {2, 0, 2});
  const Tensor rows = embedding.Forward(ids);
  EXPECT_EQ(rows.sizes(), (Shape{1, 3, 2}));
  EXPECT_THAT(rows.ToVector<float>(), ElementsAre(20, 21, 0, 1, 20, 21));
}

TEST(EmbeddingTest, MayShareItsWeightWithALinear) {
  Embedding embedding(2, 2);
  Linear head(embedding.weight());
  embedding.weight()->set_data(FromValues<float>(Shape{2, 2}, {1, 2, 3, 4}));
  const Tensor ids = FromValues<int64_t>(Shape{1}, {1});
  const Tensor logits = head.Forward(embedding.Forward(ids));
  EXPECT_THAT(logits.ToVector<float>(), ElementsAre(11, 25));
  ASSERT_TRUE(Backward(logits, {.gradient = Ones(Shape{1, 2})}).ok());
  // The head adds [3, 4] for each output, the look-up adds the column sums of
  // the weight to row 1.
  EXPECT_THAT(embedding.weight()->grad().ToVector<float>(),
              ElementsAre(3, 4, 3 + 4, 4 + 6));
}

TEST(RmsNormTest, DividesByTheRootMeanSquare) {
  RmsNorm norm(2, 0.5);
  norm.weight()->set_data(FromValues<float>(Shape{2}, {1, 2}));
  const Tensor y = norm.Forward(FromValues<float>(Shape{1, 2}, {3, 4}));
  const float rms = std::sqrt(12.5f + 0.5f);
  EXPECT_THAT(y.ToVector<float>(),
              ElementsAre(FloatEq(3 / rms), FloatEq(8 / rms)));
}

TEST(RmsNormTest, KeepsTheDTypeOfTheInput) {
  const DType dtypes[] = {kFloat32, kFloat64, kBFloat16, kFloat16};
  for (const DType of_x : dtypes) {
    for (const DType of_weight : dtypes) {
      RmsNorm norm(2, 0);
      const Tensor weight =
          ToDType(FromValues<float>(Shape{2}, {1, 2}), of_weight)
              .set_requires_grad(true);
      norm.weight()->set_gathered(weight);
      const Tensor x = ToDType(FromValues<float>(Shape{1, 2}, {-4, 4}), of_x)
                           .set_requires_grad(true);
      const Tensor y = norm.Forward(x);
      EXPECT_EQ(y.dtype(), of_x);
      EXPECT_THAT(y.ToVector<double>(), ElementsAre(-1, 2));
      ASSERT_TRUE(Backward(Sum(y)).ok());
      EXPECT_EQ(x.grad().dtype(), of_x);
      EXPECT_EQ(weight.grad().dtype(), of_weight);
      EXPECT_THAT(weight.grad().ToVector<double>(), ElementsAre(-1, 1));
    }
  }
}

}  // namespace
}  // namespace crosshatch::nn
