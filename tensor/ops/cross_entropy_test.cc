// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/ops/cross_entropy.h"

#include <cmath>
#include <vector>

#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/gradcheck_testutil.h"
#include "crosshatch/tensor/ops/cast.h"
#include "crosshatch/tensor/ops/pointwise.h"
#include "crosshatch/tensor/ops/reduce.h"
#include "crosshatch/tensor/ops/view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using ::testing::ElementsAre;
using Reduction = CrossEntropyOptions::Reduction;

TEST(CrossEntropyTest, OfUniformLogitsIsTheLogarithmOfTheClasses) {
  const Tensor logits = Zeros({2, 3, 7});
  for (DType dtype : {kInt32, kInt64, kUInt16}) {
    const Tensor targets = Full({2, 3}, 4, dtype);
    EXPECT_NEAR(CrossEntropy(logits, targets).ToVector<float>()[0],
                std::log(7.0), 1e-6);
    EXPECT_NEAR(CrossEntropy(logits, targets, {.reduction = Reduction::kSum})
                    .ToVector<float>()[0],
                6 * std::log(7.0), 1e-5);
    EXPECT_EQ(
        CrossEntropy(logits, targets, {.reduction = Reduction::kNone}).sizes(),
        Shape({2, 3}));
  }
}

TEST(CrossEntropyTest, ComputesInFloat32) {
  const Tensor targets = Zeros({1}, kInt64);
  EXPECT_EQ(CrossEntropy(Zeros({1, 3}, kBFloat16), targets).dtype(), kFloat32);
  EXPECT_EQ(CrossEntropy(Zeros({1, 3}, kFloat64), targets).dtype(), kFloat64);
}

TEST(CrossEntropyTest, IgnoresTargets) {
  const Tensor logits =
      FromValues<double>({3, 2}, {1, 2, 5, 5, 3, 4}).set_requires_grad(true);
  const Tensor targets = FromValues<int64_t>({3}, {0, -100, 0});
  const Tensor loss = CrossEntropy(logits, targets);
  EXPECT_NEAR(loss.ToVector<double>()[0], std::log(1 + std::exp(1.0)), 1e-14);
  ASSERT_TRUE(Backward(loss).ok());
  const std::vector<double> grad = logits.grad().ToVector<double>();
  EXPECT_EQ(grad[2], 0);
  EXPECT_EQ(grad[3], 0);
  EXPECT_NE(grad[0], 0);
  // The mean over no targets.
  EXPECT_TRUE(std::isnan(
      CrossEntropy(logits, Full({3}, -100, kInt64)).ToVector<double>()[0]));
  EXPECT_EQ(CrossEntropy(logits, Full({3}, -100, kInt64),
                         {.reduction = Reduction::kSum})
                .ToVector<double>()[0],
            0);
}

TEST(CrossEntropyTest, HasGradients) {
  const Tensor targets = FromValues<int64_t>({2, 2}, {0, 2, 1, -1});
  for (Reduction reduction :
       {Reduction::kMean, Reduction::kSum, Reduction::kNone}) {
    EXPECT_TRUE(Gradcheck(
        [&](TensorSpan in) {
          return CrossEntropy(in[0], targets,
                              {.reduction = reduction, .ignore_index = -1});
        },
        {RandomInput({2, 2, 3}, 1, -3, 3)}));
  }
  const Tensor none = Zeros({0}, kInt64);
  EXPECT_TRUE(Gradcheck(
      [&](TensorSpan in) {
        return CrossEntropy(in[0], none, {.reduction = Reduction::kSum});
      },
      {RandomInput({0, 3}, 1)}));
}

TEST(CrossEntropyTest, ComesFromPartsOfTheClasses) {
  const Tensor logits =
      MakeInput(RandomInput({4, 5}, 1, -3, 3), TestLayout::kContiguous);
  const Tensor targets = FromValues<int64_t>({4}, {0, 4, -100, 2});
  const TensorList whole = Apply(CrossEntropyOp(-100), {logits, targets});
  const Tensor row_max = Max(logits, {1});
  Tensor sum_exp, picked;
  for (const auto& [first, end] : {std::pair{0, 2}, {2, 2}, {2, 5}}) {
    TensorList part = Apply(CrossEntropyPartOp(-100, first, 5),
                            {Slice(logits, 1, first, end), targets, row_max});
    sum_exp = sum_exp.defined() ? Add(sum_exp, part[0]) : part[0];
    picked = picked.defined() ? Add(picked, part[1]) : part[1];
  }
  const Tensor logsumexp = Add(Log(sum_exp), row_max);
  const Tensor loss = Sub(logsumexp, picked);
  const Tensor grad = Ones({4}, kFloat64);
  const std::vector<double> dlogits =
      Apply1(CrossEntropyBackwardOp(-100, 0), {grad, logits, targets, whole[1]})
          .ToVector<double>();
  const std::vector<double> dpart =
      Apply1(CrossEntropyBackwardOp(-100, 2),
             {grad, Slice(logits, 1, 2, 5), targets, logsumexp})
          .ToVector<double>();
  for (size_t r = 0; r < 4; ++r) {
    if (r != 2) {  // Row 2 is ignored: zero only in sum.
      EXPECT_NEAR(loss.ToVector<double>()[r], whole[0].ToVector<double>()[r],
                  1e-14);
    }
    for (size_t c = 0; c < 3; ++c) {
      EXPECT_NEAR(dpart[r * 3 + c], dlogits[r * 5 + 2 + c], 1e-14);
    }
  }
}

TEST(CrossEntropyTest, CountsTargets) {
  const auto count = [](const Tensor& targets, int64_t ignored) {
    return Apply1(CountTargetsOp(ignored, kFloat32), {&targets, 1})
        .ToVector<float>();
  };
  const Tensor targets = FromValues<int64_t>({2, 2}, {1, -100, 3, 1});
  EXPECT_THAT(count(targets, -100), ElementsAre(3));
  EXPECT_THAT(count(targets, 1), ElementsAre(2));
  EXPECT_THAT(count(Zeros({4}, kUInt16), -100), ElementsAre(4));
  EXPECT_THAT(count(Zeros({4}, kUInt16), 0), ElementsAre(0));
  EXPECT_THAT(count(Zeros({0}, kInt32), 0), ElementsAre(0));
  EXPECT_THAT(count(Zeros({}, kInt32), 5), ElementsAre(1));
}

TEST(CrossEntropyTest, RefusesWhatDoesNotFit) {
  EXPECT_DEATH(CrossEntropy(Ones({2, 3}), Ones({3}, kInt64)),
               "cross_entropy of logits f32\\[2, 3\\].*i64\\[3\\]");
  EXPECT_DEATH(CrossEntropy(Ones({2, 3}), Ones({2})),
               "cross_entropy with indices f32\\[2\\]");
}

}  // namespace
}  // namespace crosshatch
