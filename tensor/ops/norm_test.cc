// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/ops/norm.h"

#include <cmath>
#include <vector>

#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/gradcheck_testutil.h"
#include "crosshatch/tensor/ops/pointwise.h"
#include "crosshatch/tensor/ops/reduce.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using ::testing::Each;

constexpr double kEps = 1e-3;

TEST(RmsNormTest, HasUnitMeanSquare) {
  const Tensor x =
      MakeInput(RandomInput({3, 4, 5}, 1), TestLayout::kContiguous);
  const Tensor y = RmsNorm(x, Full({5}, 2, kFloat64), 0);
  for (double value : Mean(Square(y), {-1}).ToVector<double>()) {
    EXPECT_NEAR(value, 4, 1e-14);
  }
}

TEST(RmsNormTest, HasGradients) {
  const TensorFunction fn = [](TensorSpan in) {
    return RmsNorm(in[0], in[1], kEps);
  };
  for (const Shape& lead : {Shape{}, Shape{3}, Shape{2, 2}, Shape{0}}) {
    Shape sizes = lead;
    sizes.push_back(3);
    EXPECT_TRUE(Gradcheck(fn, {RandomInput(sizes, 1), RandomInput({3}, 2)}));
  }
  EXPECT_TRUE(
      Gradcheck([](TensorSpan in) { return RmsNorm(in[0], Tensor(), kEps); },
                {RandomInput({2, 3}, 1)}));
  EXPECT_TRUE(GradGradcheck(fn, {RandomInput({2, 3}, 1), RandomInput({3}, 2)}));
}

TEST(LayerNormTest, HasZeroMeanAndUnitVariance) {
  const Tensor x = MakeInput(RandomInput({3, 5}, 1), TestLayout::kContiguous);
  const Tensor y = LayerNorm(x, Tensor(), Tensor(), 0);
  for (double value : Mean(y, {-1}).ToVector<double>()) {
    EXPECT_NEAR(value, 0, 1e-14);
  }
  for (double value : Mean(Square(y), {-1}).ToVector<double>()) {
    EXPECT_NEAR(value, 1, 1e-13);
  }
}

TEST(LayerNormTest, HasGradients) {
  const TensorFunction fn = [](TensorSpan in) {
    return LayerNorm(in[0], in[1], in[2], kEps);
  };
  for (const Shape& sizes : {Shape{2, 3}, Shape{3}, Shape{0, 3}}) {
    EXPECT_TRUE(Gradcheck(
        fn, {RandomInput(sizes, 1), RandomInput({3}, 2), RandomInput({3}, 3)}));
  }
  EXPECT_TRUE(Gradcheck(
      [](TensorSpan in) { return LayerNorm(in[0], Tensor(), in[1], kEps); },
      {RandomInput({2, 3}, 1), RandomInput({3}, 3)}));
  EXPECT_TRUE(GradGradcheck(
      fn, {RandomInput({2, 3}, 1), RandomInput({3}, 2), RandomInput({3}, 3)}));
}

TEST(SoftmaxTest, SumsToOneOverAnyDim) {
  const Tensor x =
      MakeInput(RandomInput({2, 3, 4}, 1), TestLayout::kReversed, kFloat32);
  for (int64_t dim : {0, 1, 2, -1}) {
    EXPECT_THAT(Sum(Softmax(x, dim), {dim}).ToVector<float>(),
                Each(::testing::FloatNear(1, 1e-6)));
    EXPECT_THAT(Sum(Exp(LogSoftmax(x, dim)), {dim}).ToVector<float>(),
                Each(::testing::FloatNear(1, 1e-6)));
  }
}

TEST(SoftmaxTest, HasGradients) {
  for (int64_t dim : {0, 1}) {
    for (auto* softmax : {Softmax, LogSoftmax}) {
      const TensorFunction fn = [&](TensorSpan in) {
        return softmax(in[0], dim);
      };
      for (const Shape& sizes : {Shape{2, 3}, Shape{1, 1}}) {
        EXPECT_TRUE(Gradcheck(fn, {RandomInput(sizes, 1)}));
      }
      EXPECT_TRUE(GradGradcheck(fn, {RandomInput({2, 3}, 1)}));
    }
  }
}

TEST(NormTest, RefusesWhatDoesNotFit) {
  EXPECT_DEATH(RmsNorm(Ones({2, 3}), Ones({2}), 0),
               "rms_norm of f32\\[2, 3\\].*weight f32\\[2\\]");
  EXPECT_DEATH(RmsNorm(Ones({2, 3}), Ones({3}, kFloat64), 0), "dtypes differ");
  EXPECT_DEATH(LayerNorm(Ones({2, 3}), Ones({3}), Ones({3, 1}), 0),
               "layer_norm of f32\\[2, 3\\].*bias");
  EXPECT_DEATH(Softmax(Ones({2}, kInt32)), "softmax of i32");
}

}  // namespace
}  // namespace crosshatch
