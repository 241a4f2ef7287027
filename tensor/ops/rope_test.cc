// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/ops/rope.h"

#include <cmath>
#include <vector>

#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/gradcheck_testutil.h"
#include "crosshatch/tensor/ops/embedding.h"
#include "crosshatch/tensor/ops/pointwise.h"
#include "crosshatch/tensor/ops/view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using ::testing::ElementsAre;

Tensor Table(int64_t time, int64_t half, double (*fn)(double)) {
  std::vector<float> values;
  for (int64_t i = 0; i < time * half; ++i) {
    values.push_back(static_cast<float>(fn(0.3 * static_cast<double>(i))));
  }
  return FromValues<float>({time, half}, absl::MakeConstSpan(values));
}

TEST(RopeTest, RotatesHalves) {
  const Tensor x = FromValues<float>({1, 1, 1, 4}, {1, 2, 3, 4});
  const Tensor cos = FromValues<float>({1, 2}, {0, 2});
  const Tensor sin = FromValues<float>({1, 2}, {1, 3});
  EXPECT_THAT(ApplyRope(x, cos, sin).ToVector<float>(),
              ElementsAre(-3, 4 - 12, 1, 8 + 6));
}

TEST(RopeTest, RowsMayStandAtPositionsOfTheirOwn) {
  const Tensor cos = Table(4, 2, std::cos);
  const Tensor sin = Table(4, 2, std::sin);
  const Tensor x =
      MakeInput(RandomInput({2, 3, 1, 4}, 1), TestLayout::kContiguous);
  const Tensor positions = FromValues<int32_t>({2, 3}, {0, 1, 0, 3, 1, 1});
  const Tensor got =
      ApplyRope(x, Embedding(positions, cos), Embedding(positions, sin));
  for (int64_t row = 0; row < 2; ++row) {
    for (int64_t t = 0; t < 3; ++t) {
      const auto at = [&](const Tensor& all) {
        return Slice(Slice(all, 0, row, row + 1), 1, t, t + 1);
      };
      const auto position =
          positions.ToVector<int64_t>()[static_cast<size_t>(row * 3 + t)];
      EXPECT_EQ(at(got).ToVector<double>(),
                ApplyRope(at(x), Slice(cos, 0, position, position + 1),
                          Slice(sin, 0, position, position + 1))
                    .ToVector<double>());
    }
  }
  EXPECT_TRUE(Gradcheck(
      [&](TensorSpan in) {
        return ApplyRope(in[0], Embedding(positions, cos),
                         Embedding(positions, sin));
      },
      {RandomInput({2, 3, 1, 4}, 1)}));
}

TEST(RopeTest, HasGradientsOfEveryOrder) {
  const Tensor cos = Table(3, 2, std::cos);
  const Tensor sin = Table(3, 2, std::sin);
  const TensorFunction fn = [&](TensorSpan in) {
    return ApplyRope(in[0], cos, sin);
  };
  EXPECT_TRUE(Gradcheck(fn, {RandomInput({2, 3, 2, 4}, 1)}));
  EXPECT_TRUE(Gradcheck(fn, {RandomInput({0, 3, 2, 4}, 1)}));
  EXPECT_TRUE(GradGradcheck([&](TensorSpan in) { return Square(fn(in)); },
                            {RandomInput({1, 3, 1, 4}, 1)}));
}

TEST(RopeTest, RefusesWhatDoesNotFit) {
  EXPECT_DEATH(ApplyRope(Ones({1, 2, 1, 4}), Ones({2, 4}), Ones({2, 4})),
               "rope of x f32\\[1, 2, 1, 4\\].*cos f32\\[2, 4\\]");
  EXPECT_DEATH(ApplyRope(Ones({2, 4}), Ones({2, 2}), Ones({2, 2})),
               "rope of f32\\[2, 4\\]");
  const Tensor cos = Ones({2, 2}).set_requires_grad(true);
  EXPECT_DEATH(ApplyRope(Ones({1, 2, 1, 4}), cos, cos), "no gradient by cos");
}

}  // namespace
}  // namespace crosshatch
