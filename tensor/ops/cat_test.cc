// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/ops/cat.h"

#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/gradcheck_testutil.h"
#include "crosshatch/tensor/ops/pointwise.h"
#include "crosshatch/tensor/ops/view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using ::testing::ElementsAre;

TEST(CatTest, JoinsAlongADim) {
  const Tensor a = View(Arange(4), {2, 2});
  const Tensor b = Full({2, 1}, 9);
  EXPECT_THAT(Cat({a, b, a}, 1).ToVector<float>(),
              ElementsAre(0, 1, 9, 0, 1, 2, 3, 9, 2, 3));
  EXPECT_THAT(Cat({a, Zeros({0, 2}), a}, 0).sizes(), ElementsAre(4, 2));
  EXPECT_THAT(Stack({a, a, a}, 1).sizes(), ElementsAre(2, 3, 2));
  EXPECT_THAT(Stack({Select(a, 0, 0), Select(a, 0, 1)}, -1).ToVector<float>(),
              ElementsAre(0, 2, 1, 3));
}

TEST(CatTest, SplitUndoesIt) {
  const Tensor a = View(Arange(6), {2, 3});
  const TensorList parts = Split(a, {1, 0, 2}, 1);
  ASSERT_EQ(parts.size(), 3u);
  EXPECT_THAT(parts[0].ToVector<float>(), ElementsAre(0, 3));
  EXPECT_EQ(parts[1].sizes(), Shape({2, 0}));
  EXPECT_EQ(parts[2].storage(), a.storage());
  EXPECT_EQ(Cat(parts, 1).ToVector<float>(), a.ToVector<float>());
}

TEST(CatTest, Repeats) {
  const Tensor a = View(Arange(2), {1, 2});
  EXPECT_EQ(Repeat(a, {2, 2}).ToVector<float>(),
            (std::vector<float>{0, 1, 0, 1, 0, 1, 0, 1}));
  EXPECT_EQ(Repeat(a, {3, 1, 2}).sizes(), Shape({3, 1, 4}));
  EXPECT_EQ(Repeat(a, {2, 0}).sizes(), Shape({2, 0}));
  // Repeat copies, even if it repeats once.
  EXPECT_NE(Repeat(a, {1, 1}).storage(), a.storage());
  EXPECT_DEATH(Repeat(a, {2}), "repeat of f32\\[1, 2\\].* by \\[2\\]");
  EXPECT_TRUE(Gradcheck(
      [](TensorSpan in) {
        return Square(Repeat(in[0], {2, 1, 3}));
      },
      {RandomInput({2, 2}, 1)}));
}

TEST(CatTest, HasGradients) {
  const TensorFunction fn = [](TensorSpan in) {
    const Tensor joined = Cat({in[0], in[1], in[0]}, 1);
    const TensorList parts = Split(joined, {1, joined.size(1) - 1}, 1);
    return Add(Square(joined), Mul(joined, parts[0]));
  };
  EXPECT_TRUE(Gradcheck(fn, {RandomInput({2, 2}, 1), RandomInput({2, 1}, 2)}));
  EXPECT_TRUE(
      GradGradcheck(fn, {RandomInput({2, 2}, 1), RandomInput({2, 1}, 2)}));
  EXPECT_TRUE(Gradcheck(
      [](TensorSpan in) {
        return Square(Stack({in[0], in[1]}, 1));
      },
      {RandomInput({2}, 1), RandomInput({2}, 2)}));
}

TEST(CatTest, RefusesWhatDoesNotFit) {
  EXPECT_DEATH(Cat({Ones({2, 2}), Ones({3, 2})}, 1),
               "cat along dim 1 of f32\\[2, 2\\].*f32\\[3, 2\\]");
  EXPECT_DEATH(Cat({Ones({2}), Ones({2}, kFloat64)}, 0), "dtypes differ");
  EXPECT_DEATH(Cat({}, 0), "cat of no tensors");
  EXPECT_DEATH(Stack({Ones({2}), Ones({3})}, 0), "stack of f32\\[2\\]");
  EXPECT_DEATH(Split(Ones({3}), {1, 1}, 0), "split of dim 0 of f32\\[3\\]");
}

}  // namespace
}  // namespace crosshatch
