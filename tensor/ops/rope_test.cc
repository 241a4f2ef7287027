// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/ops/rope.h"

#include <cmath>
#include <vector>

#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/gradcheck_testutil.h"
#include "crosshatch/tensor/ops/pointwise.h"
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
