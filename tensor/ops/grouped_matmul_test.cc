// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/ops/grouped_matmul.h"

#include <vector>

#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/gradcheck_testutil.h"
#include "crosshatch/tensor/ops/ops.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

Tensor SmallNumbers(ShapeView sizes, int start) {
  std::vector<float> values;
  for (int64_t i = 0; i < NumElements(sizes); ++i) {
    values.push_back(static_cast<float>((start + 5 * i) % 7 - 3));
  }
  return FromValues<float>(sizes, values);
}

// Multiplies each group separately.
Tensor OneByOne(const Tensor& x, const Tensor& w, ShapeView offsets,
                bool transpose_w) {
  TensorList parts;
  for (int64_t g = 0; g < w.size(0); ++g) {
    const int64_t begin = offsets[static_cast<size_t>(g)];
    const int64_t end = offsets[static_cast<size_t>(g) + 1];
    parts.push_back(MatMul(Slice(x, 0, begin, end),
                           Squeeze(Slice(w, 0, g, g + 1), 0), false,
                           transpose_w));
  }
  return Cat(parts, 0);
}

TEST(GroupedMatMulTest, MultipliesEachGroupByItsMatrix) {
  const Tensor x = SmallNumbers({7, 3}, 1);
  // Groups of some, none, one and the remaining rows; of all rows; with empty
  // ones in front.
  for (const Shape& offsets :
       {Shape{0, 3, 3, 4, 7}, Shape{0, 7, 7, 7, 7}, Shape{0, 0, 0, 0, 7}}) {
    const Tensor w = SmallNumbers({4, 3, 5}, 2);
    EXPECT_EQ(GroupedMatMul(x, w, offsets).ToVector<float>(),
              OneByOne(x, w, offsets, false).ToVector<float>());
    const Tensor turned = SmallNumbers({4, 5, 3}, 2);
    EXPECT_EQ(GroupedMatMul(x, turned, offsets, true).ToVector<float>(),
              OneByOne(x, turned, offsets, true).ToVector<float>());
  }
}

TEST(GroupedMatMulTest, TakesStridesAsTheyAre) {
  const Tensor x = Transpose(SmallNumbers({3, 7}, 1), 0, 1);
  const Tensor w = Transpose(SmallNumbers({5, 3, 2}, 2), 0, 2);
  const Shape offsets = {0, 2, 7};
  EXPECT_EQ(GroupedMatMul(x, w, offsets).ToVector<float>(),
            OneByOne(x, w, offsets, false).ToVector<float>());
}

TEST(GroupedMatMulTest, OfNoRowsAndOfNoGroups) {
  EXPECT_EQ(GroupedMatMul(Ones({0, 3}), Ones({2, 3, 4}), {0, 0, 0}).sizes(),
            Shape({0, 4}));
  EXPECT_EQ(GroupedMatMul(Ones({0, 3}), Ones({0, 3, 4}), {0}).sizes(),
            Shape({0, 4}));
  EXPECT_EQ(GroupedOuter(Ones({0, 3}), Ones({0, 4}), {0}).sizes(),
            Shape({0, 3, 4}));
}

TEST(GroupedOuterTest, SumsOverTheRowsOfEachGroup) {
  const Tensor a = SmallNumbers({5, 2}, 1);
  const Tensor b = SmallNumbers({5, 3}, 4);
  const Tensor sums = GroupedOuter(a, b, {0, 2, 2, 5});
  EXPECT_EQ(
      Squeeze(Slice(sums, 0, 0, 1), 0).ToVector<float>(),
      MatMul(Slice(a, 0, 0, 2), Slice(b, 0, 0, 2), true).ToVector<float>());
  EXPECT_EQ(Slice(sums, 0, 1, 2).ToVector<float>(), std::vector<float>(6, 0));
  EXPECT_EQ(
      Squeeze(Slice(sums, 0, 2, 3), 0).ToVector<float>(),
      MatMul(Slice(a, 0, 2, 5), Slice(b, 0, 2, 5), true).ToVector<float>());
}

TEST(GroupedMatMulTest, Gradients) {
  const std::vector<TestInput> operands = {RandomInput({5, 3}, 1),
                                           RandomInput({3, 3, 2}, 2)};
  const Shape offsets = {0, 2, 2, 5};
  const auto product = [&](TensorSpan in) {
    return GroupedMatMul(in[0], in[1], offsets);
  };
  EXPECT_TRUE(Gradcheck(product, operands));
  EXPECT_TRUE(GradGradcheck(product, operands));
  const std::vector<TestInput> turned = {RandomInput({5, 3}, 1),
                                         RandomInput({3, 2, 3}, 2)};
  EXPECT_TRUE(Gradcheck(
      [&](TensorSpan in) {
        return GroupedMatMul(in[0], in[1], offsets, /*transpose_w=*/true);
      },
      turned));
  const auto outer = [&](TensorSpan in) {
    return GroupedOuter(in[0], in[1], offsets);
  };
  const std::vector<TestInput> rows = {RandomInput({5, 3}, 3),
                                       RandomInput({5, 2}, 4)};
  EXPECT_TRUE(Gradcheck(outer, rows));
  EXPECT_TRUE(GradGradcheck(outer, rows));
}

TEST(GroupedMatMulDeathTest, SaysWhatDoesNotFit) {
  EXPECT_DEATH(GroupedMatMul(Ones({4, 3}), Ones({2, 5, 6}), {0, 2, 4}),
               "grouped_matmul of \\[4, 3\\] by \\[2, 5, 6\\]");
  EXPECT_DEATH(GroupedMatMul(Ones({4, 3}), Ones({2, 3, 6}), {0, 4}),
               "offsets, one more than groups");
  EXPECT_DEATH(GroupedMatMul(Ones({4, 3}), Ones({2, 3, 6}), {0, 2, 3}),
               "end with the number of rows, 4");
  EXPECT_DEATH(GroupedOuter(Ones({4, 3}), Ones({4, 2}), {0, 3, 2, 4}),
               "the offsets \\[0, 3, 2, 4\\] of groups fall");
}

}  // namespace
}  // namespace crosshatch
