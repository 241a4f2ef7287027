// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/ops/reduce.h"

#include <string>
#include <vector>

#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/gradcheck_testutil.h"
#include "crosshatch/tensor/ops/pointwise.h"
#include "crosshatch/tensor/ops/view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

TEST(ReduceTest, ReducesAnyDims) {
  const Tensor a = View(Arange(6), {2, 3});
  EXPECT_THAT(Sum(a).ToVector<float>(), ElementsAre(15));
  EXPECT_EQ(Sum(a).sizes(), Shape({}));
  EXPECT_EQ(Sum(a, {}, true).sizes(), Shape({1, 1}));
  EXPECT_THAT(Sum(a, {0}).ToVector<float>(), ElementsAre(3, 5, 7));
  EXPECT_THAT(Sum(a, {-1}).ToVector<float>(), ElementsAre(3, 12));
  EXPECT_EQ(Sum(a, {-1}, true).sizes(), Shape({2, 1}));
  EXPECT_THAT(Sum(a, {1, 0}).ToVector<float>(), ElementsAre(15));
  EXPECT_THAT(Mean(a, {0}).ToVector<float>(), ElementsAre(1.5, 2.5, 3.5));
  EXPECT_THAT(Prod(Add(a, 1), {1}).ToVector<float>(), ElementsAre(6, 120));
  EXPECT_THAT(Max(a, {0}).ToVector<float>(), ElementsAre(3, 4, 5));
  EXPECT_THAT(Min(a, {1}).ToVector<float>(), ElementsAre(0, 3));
  EXPECT_THAT(SumOfSquares(a, {1}).ToVector<float>(), ElementsAre(5, 50));
  EXPECT_THAT(ArgMax(a, 1).ToVector<int64_t>(), ElementsAre(2, 2));
  EXPECT_EQ(ArgMin(a, 0, true).sizes(), Shape({1, 3}));
  EXPECT_THAT(Sum(Transpose(a, 0, 1), {0}).ToVector<float>(),
              ElementsAre(3, 12));
  EXPECT_THAT(Sum(Zeros({0, 2}), {0}).ToVector<float>(), ElementsAre(0, 0));
  EXPECT_THAT(Sum(Full({}, 3)).ToVector<float>(), ElementsAre(3));
}

TEST(ReduceTest, GivesTheDTypesItSays) {
  EXPECT_EQ(Sum(Ones({2}, kBFloat16)).dtype(), kBFloat16);
  EXPECT_EQ(Sum(Ones({2}, kInt32)).dtype(), kInt64);
  EXPECT_THAT(Sum(Ones({3}, kBool)).ToVector<int64_t>(), ElementsAre(3));
  EXPECT_EQ(Max(Ones({2}, kInt32)).dtype(), kInt32);
  EXPECT_EQ(ArgMax(Ones({2}), 0).dtype(), kInt64);
}

TEST(ReduceTest, RefusesWhatDoesNotFit) {
  const Tensor a = Zeros({2, 3});
  EXPECT_DEATH(Sum(a, {2}), "sum");
  EXPECT_DEATH(Sum(a, {0, -2}), "sum of f32\\[2, 3\\].*a dim twice");
  EXPECT_DEATH(Mean(Ones({2}, kInt32)), "mean of i32\\[2\\]");
  EXPECT_DEATH(ArgMax(Zeros({0}), 0), "argmax of f32\\[0\\].*no elements");
  EXPECT_DEATH(SumTo(a, {3, 3}), "sum of f32\\[2, 3\\].*to \\[3, 3\\]");
}

struct Case {
  const char* name;
  Tensor (*fn)(const Tensor&, ShapeView, bool);
};

class ReductionGradientTest : public ::testing::TestWithParam<Case> {};

TEST_P(ReductionGradientTest, MatchesDifferences) {
  const Case& c = GetParam();
  for (const Shape& dims : {Shape{}, Shape{0}, Shape{1}, Shape{0, 2}}) {
    for (bool keepdim : {false, true}) {
      const TensorFunction fn = [&](TensorSpan in) {
        return c.fn(in[0], dims, keepdim);
      };
      EXPECT_TRUE(Gradcheck(fn, {RandomInput({2, 3, 2}, 3)}));
      EXPECT_TRUE(Gradcheck(fn, {RandomInput({1, 1, 1}, 3)}));
    }
  }
  EXPECT_TRUE(
      GradGradcheck([&c](TensorSpan in) { return Square(c.fn(in[0], {1}, 0)); },
                    {RandomInput({2, 3}, 4)}));
  EXPECT_TRUE(Gradcheck([&c](TensorSpan in) { return c.fn(in[0], {}, false); },
                        {RandomInput({}, 4)}));
}

INSTANTIATE_TEST_SUITE_P(All, ReductionGradientTest,
                         ::testing::Values(Case{"Sum", Sum}, Case{"Mean", Mean},
                                           Case{"Prod", Prod}, Case{"Max", Max},
                                           Case{"Min", Min},
                                           Case{"SumOfSquares", SumOfSquares}),
                         [](const auto& info) {
                           return std::string(info.param.name);
                         });

TEST(ReductionGradientTest, OfNoElements) {
  for (auto* fn : {Sum, Mean, Prod, SumOfSquares}) {
    const Tensor x = Zeros({0, 2}, kFloat64).set_requires_grad(true);
    ASSERT_TRUE(Backward(Sum(fn(x, {0}, false))).ok());
    EXPECT_EQ(x.grad().sizes(), x.sizes());
  }
}

TEST(ReductionGradientTest, OfAProductWithZeros) {
  const TestInput one_zero = {{2, 3}, {0, 2, 3, 4, 5, 6}};
  const TestInput two_zeros = {{2, 3}, {0, 2, 0, 4, 0, 6}};
  const TensorFunction fn = [](TensorSpan in) { return Prod(in[0], {1}); };
  EXPECT_TRUE(Gradcheck(fn, {one_zero}));
  EXPECT_TRUE(Gradcheck(fn, {two_zeros}));
}

TEST(ReductionGradientTest, EqualLargestElementsShare) {
  const Tensor x =
      FromValues<double>({4}, {1, 3, 3, 2}).set_requires_grad(true);
  ASSERT_TRUE(Backward(Max(x)).ok());
  EXPECT_THAT(x.grad().ToVector<double>(), ElementsAre(0, 0.5, 0.5, 0));
}

TEST(ReductionGradientTest, OfMoreEqualsThan16BitsCount) {
  constexpr int64_t kCount = 70'000;
  for (DType dtype : {kFloat16, kBFloat16}) {
    for (auto* fn : {Max, Min}) {
      const Tensor x = Ones({kCount}, dtype).set_requires_grad(true);
      // The share of one element is 0.5, which fits 16 bits.
      ASSERT_TRUE(Backward(Mul(fn(x, {}, false), 35'000.0)).ok());
      EXPECT_THAT(x.grad().ToVector<float>(), Each(0.5f)) << dtype;
    }
  }
}

TEST(SumToTest, UndoesBroadcasting) {
  const Tensor a = Ones({4, 2, 3});
  for (const Shape& sizes : {Shape{2, 3}, Shape{3}, Shape{}, Shape{2, 1},
                             Shape{1, 2, 3}, Shape{4, 1, 1}}) {
    const Tensor sum = SumTo(a, sizes);
    EXPECT_EQ(sum.sizes(), sizes);
    EXPECT_EQ(sum.ToVector<float>()[0], 24 / static_cast<float>(sum.numel()));
  }
  EXPECT_TRUE(SumTo(a, a.sizes()).SameAs(a));
}

}  // namespace
}  // namespace crosshatch
