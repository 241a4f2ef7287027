// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/ops/index.h"

#include <vector>

#include "absl/status/status.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/gradcheck_testutil.h"
#include "crosshatch/tensor/ops/cast.h"
#include "crosshatch/tensor/ops/cross_entropy.h"
#include "crosshatch/tensor/ops/embedding.h"
#include "crosshatch/tensor/ops/pointwise.h"
#include "crosshatch/tensor/ops/reduce.h"
#include "crosshatch/tensor/ops/view.h"
#include "crosshatch/tensor/rank_context.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

Tensor Ids(ShapeView sizes, std::vector<int64_t> ids) {
  return FromValues<int64_t>(sizes, ids);
}

TEST(IndexTest, GathersAlongADim) {
  const Tensor a = View(Arange(6), {2, 3});
  EXPECT_THAT(Gather(a, 1, Ids({2, 2}, {2, 0, 1, 1})).ToVector<float>(),
              ElementsAre(2, 0, 4, 4));
  EXPECT_THAT(Gather(a, -2, Ids({1, 3}, {1, 0, 1})).ToVector<float>(),
              ElementsAre(3, 1, 5));
  EXPECT_EQ(Gather(a, 1, Ids({2, 0}, {})).sizes(), Shape({2, 0}));
  // Strided a and index, in other dtypes.
  EXPECT_THAT(
      Gather(ToDType(Transpose(a, 0, 1), kInt32), 0,
             Transpose(ToDType(Ids({2, 2}, {2, 0, 1, 1}), kInt32), 0, 1))
          .ToVector<float>(),
      ElementsAre(2, 4, 0, 4));
}

TEST(IndexTest, SelectsIndices) {
  const Tensor a = View(Arange(6), {2, 3});
  EXPECT_THAT(IndexSelect(a, 1, Ids({4}, {2, 2, 0, 1})).ToVector<float>(),
              ElementsAre(2, 2, 0, 1, 5, 5, 3, 4));
  EXPECT_THAT(IndexSelect(a, 0, Ids({1}, {1})).ToVector<float>(),
              ElementsAre(3, 4, 5));
  EXPECT_EQ(IndexSelect(a, 0, Ids({0}, {})).sizes(), Shape({0, 3}));
  EXPECT_EQ(IndexSelect(Zeros({4, 0}), 0, Ids({2}, {1, 3})).sizes(),
            Shape({2, 0}));
}

TEST(IndexTest, ScatterWritesAndAdds) {
  const Tensor base = Full({2, 3}, 10);
  const Tensor index = Ids({2, 2}, {2, 2, 0, 1});
  const Tensor src = View(Arange(4), {2, 2});
  EXPECT_THAT(ScatterAdd(base, 1, index, src).ToVector<float>(),
              ElementsAre(10, 10, 11, 12, 13, 10));
  EXPECT_THAT(Scatter(base, 1, index, src).ToVector<float>(),
              ElementsAre(10, 10, 1, 2, 3, 10));
  EXPECT_THAT(Scatter(base, 1, index, -1).ToVector<float>(),
              ElementsAre(10, 10, -1, -1, -1, 10));
  EXPECT_THAT(base.ToVector<float>(), Each(10));
}

// 1 + 2^-8 is not a bf16: one by one, each addition would round to 1.
TEST(IndexTest, SumsOfShortFloatsAreRoundedOnce) {
  const Tensor sums =
      ScatterAdd(Ones({1}, kBFloat16), 0, Ids({8}, {0, 0, 0, 0, 0, 0, 0, 0}),
                 Full({8}, 1.0 / 256, kBFloat16));
  EXPECT_THAT(sums.ToVector<float>(), ElementsAre(1.03125));
}

TEST(IndexTest, HasGradients) {
  // The first row has 2 twice, the second has 0 three times, neither has 3.
  const Tensor index = Ids({2, 3}, {2, 1, 2, 0, 0, 0});
  const TensorFunction gather = [&](TensorSpan in) {
    return Square(Gather(in[0], 1, index));
  };
  const TensorFunction select = [&](TensorSpan in) {
    return Square(IndexSelect(in[0], 0, Ids({4}, {1, 0, 1, 1})));
  };
  const TensorFunction add = [&](TensorSpan in) {
    return Square(ScatterAdd(in[0], 1, index, in[1]));
  };
  const TensorFunction write = [&](TensorSpan in) {
    return Square(Scatter(in[0], 1, index, in[1]));
  };
  const TensorFunction fill = [&](TensorSpan in) {
    return Square(Scatter(in[0], 1, index, 3));
  };
  const TestInput a = RandomInput({2, 4}, 1);
  const TestInput src = RandomInput({2, 3}, 2);
  EXPECT_TRUE(Gradcheck(gather, {a}));
  EXPECT_TRUE(GradGradcheck(gather, {a}));
  EXPECT_TRUE(Gradcheck(select, {a}));
  EXPECT_TRUE(GradGradcheck(select, {a}));
  EXPECT_TRUE(Gradcheck(add, {a, src}));
  EXPECT_TRUE(GradGradcheck(add, {a, src}));
  EXPECT_TRUE(Gradcheck(write, {a, src}));
  EXPECT_TRUE(GradGradcheck(write, {a, src}));
  EXPECT_TRUE(Gradcheck(fill, {a}));
  EXPECT_TRUE(GradGradcheck(fill, {a}));
}

// A failed collective may have left the indices unwritten.
TEST(IndexTest, OfAPoisonedRankAreNotLookedAt) {
  RankContext context({});
  const RankContextScope scope(&context);
  const Tensor wild = Ids({1, 3}, {-7, 3, 1'000'000'000'000});
  const Tensor table = Ones({3, 3}).set_requires_grad(true);
  context.Poison(absl::UnavailableError("rank 3 is gone"));
  EXPECT_EQ(Gather(table, 0, wild).sizes(), wild.sizes());
  EXPECT_EQ(Scatter(table, 0, wild, Ones({1, 3})).sizes(), table.sizes());
  EXPECT_EQ(Scatter(table, 0, wild, -1).sizes(), table.sizes());
  EXPECT_EQ(ScatterAdd(table, 0, wild, Ones({1, 3})).sizes(), table.sizes());
  EXPECT_EQ(IndexSelect(table, 1, View(wild, {3})).sizes(), Shape({3, 3}));
  EXPECT_EQ(Embedding(View(wild, {3}), table).sizes(), Shape({3, 3}));
  const Tensor losses = CrossEntropy(table, View(wild, {3}));
  EXPECT_EQ(Backward(losses).message(), "rank 3 is gone");
}

// A device may report it when the host next waits.
TEST(IndexDeathTest, NamesAnIndexOutOfRange) {
  const Tensor a = Zeros({2, 3});
  EXPECT_DEATH(Gather(a, 1, Ids({2, 1}, {0, 3})).ToVector<float>(),
               "gather: index 3 is out of range: dim 1 has 3 elements");
  EXPECT_DEATH(IndexSelect(a, 0, Ids({1}, {-1})).ToVector<float>(),
               "index_select: index -1 is out of range: dim 0 has 2 elements");
  EXPECT_DEATH(
      ScatterAdd(a, 1, Ids({2, 1}, {0, 7}), Ones({2, 1})).ToVector<float>(),
      "scatter_add: index 7 is out of range: dim 1 has 3 elements");
  EXPECT_DEATH(Scatter(a, 1, Ids({2, 1}, {0, 7}), 1).ToVector<float>(),
               "scatter: index 7 is out of range: dim 1 has 3 elements");
}

TEST(IndexDeathTest, RefusesWhatDoesNotFit) {
  const Tensor a = Zeros({2, 3});
  EXPECT_DEATH(Gather(a, 1, Ids({3, 1}, {0, 0, 0})),
               "gather along dim 1 of f32\\[2, 3\\].*i64\\[3, 1\\]");
  EXPECT_DEATH(Gather(a, 0, Zeros({1, 3})), "gather with indices f32");
  EXPECT_DEATH(IndexSelect(a, 0, Ids({1, 1}, {0})), "index_select of");
  EXPECT_DEATH(ScatterAdd(a, 1, Ids({2, 1}, {0, 0}), Zeros({2, 2})),
               "scatter_add of f32\\[2, 2\\].*sizes must be equal");
  EXPECT_DEATH(Scatter(a, 1, Ids({2, 1}, {0, 0}), Zeros({2, 1}, kFloat64)),
               "dtypes differ");
}

}  // namespace
}  // namespace crosshatch
