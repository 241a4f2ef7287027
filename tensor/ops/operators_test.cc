// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/ops/operators.h"

#include <vector>

#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/reduce.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using ::testing::ElementsAre;

std::vector<float> Values(const Tensor& x) { return x.ToVector<float>(); }

TEST(OperatorsTest, AreArithmetic) {
  const Tensor a = FromValues<float>({2}, {6, 8});
  const Tensor b = FromValues<float>({2}, {2, -4});
  EXPECT_THAT(Values(a + b), ElementsAre(8, 4));
  EXPECT_THAT(Values(a - b), ElementsAre(4, 12));
  EXPECT_THAT(Values(a * b), ElementsAre(12, -32));
  EXPECT_THAT(Values(a / b), ElementsAre(3, -2));
  EXPECT_THAT(Values(-a), ElementsAre(-6, -8));
  EXPECT_THAT(Values(a + 1), ElementsAre(7, 9));
  EXPECT_THAT(Values(a - 1), ElementsAre(5, 7));
  EXPECT_THAT(Values(a * 3), ElementsAre(18, 24));
  EXPECT_THAT(Values(a / 2), ElementsAre(3, 4));
  EXPECT_THAT(Values(1 + a), ElementsAre(7, 9));
  EXPECT_THAT(Values(1 - a), ElementsAre(-5, -7));
  EXPECT_THAT(Values(3 * a), ElementsAre(18, 24));
  EXPECT_THAT(Values(24 / a), ElementsAre(4, 3));
  EXPECT_THAT(Values((a + 2 * b) / a), ElementsAre(10.0f / 6, 0));
}

TEST(OperatorsTest, AreDifferentiable) {
  Tensor x = FromValues<float>({2}, {3, 5});
  x.set_requires_grad(true);
  ASSERT_TRUE(Backward(Sum(x * x - 4 * x)).ok());
  EXPECT_THAT(Values(x.grad()), ElementsAre(2, 6));
}

TEST(SubscriptTest, TakesElementsAndRanges) {
  const Tensor x = FromValues<float>({2, 3}, {0, 1, 2, 3, 4, 5});
  EXPECT_THAT(Values(x[1]), ElementsAre(3, 4, 5));
  EXPECT_THAT(Values(x[-2]), ElementsAre(0, 1, 2));
  EXPECT_THAT(Values(x[1][2]), ElementsAre(5));
  EXPECT_EQ(x[1][2].ndim(), 0);
  EXPECT_THAT(x[Range{1}].sizes(), ElementsAre(1, 3));
  EXPECT_THAT(Values(x[{1, Range{0, 2}}]), ElementsAre(3, 4));
  EXPECT_THAT(Values(x[{Range{}, -1}]), ElementsAre(2, 5));
  EXPECT_THAT((x[{Range{}, Range{1, 99}}]).sizes(), ElementsAre(2, 2));
  EXPECT_EQ(x[1].storage(), x.storage());
}

TEST(SubscriptDeathTest, NamesWhatIsNotThere) {
  const Tensor x = Ones({2, 3});
  EXPECT_DEATH((void)x[2], "select.*2");
  EXPECT_DEATH((void)(x[{0, 0, 0}]), "3 indices of f32\\[2, 3\\]");
  EXPECT_DEATH((void)Tensor()[0], "\\[\\] of an undefined tensor");
}

}  // namespace
}  // namespace crosshatch
