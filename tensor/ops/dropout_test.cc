// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/ops/dropout.h"

#include <cmath>

#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/gradcheck_testutil.h"
#include "crosshatch/tensor/ops/pointwise.h"
#include "crosshatch/tensor/ops/reduce.h"
#include "crosshatch/tensor/ops/view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using ::testing::Each;

TEST(DropoutTest, DropsTheRequestedShare) {
  constexpr int64_t kCount = 100000;
  for (double p : {0.1, 0.5, 0.9}) {
    int64_t kept = 0;
    for (float x : Dropout(Ones({kCount}), p, 3, 0).ToVector<float>()) {
      if (x == 0) continue;
      EXPECT_EQ(x, static_cast<float>(1 / (1 - p)));
      ++kept;
    }
    // Five standard deviations.
    EXPECT_NEAR(static_cast<double>(kept), kCount * (1 - p),
                5 * std::sqrt(kCount * p * (1 - p)));
  }
  EXPECT_THAT(Dropout(Full({50}, 3), 0, 1, 0).ToVector<float>(), Each(3));
  EXPECT_THAT(Dropout(Full({50}, 3), 1, 1, 0).ToVector<float>(), Each(0));
}

TEST(DropoutTest, FollowsFromKeyStepAndElement) {
  const Tensor x = Ones({8, 8});
  const auto draw = [&](uint64_t key, uint64_t step) {
    return Dropout(x, 0.5, key, step).ToVector<float>();
  };
  EXPECT_EQ(draw(1, 2), draw(1, 2));
  EXPECT_NE(draw(1, 2), draw(2, 2));
  EXPECT_NE(draw(1, 2), draw(1, 3));
  // The mask depends on indices, not on addresses.
  EXPECT_EQ(Dropout(Transpose(x, 0, 1), 0.5, 1, 2).ToVector<float>(),
            draw(1, 2));
}

TEST(DropoutTest, HasGradients) {
  const TensorFunction fn = [](TensorSpan in) {
    return Square(Dropout(in[0], 0.5, 7, 1));
  };
  EXPECT_TRUE(Gradcheck(fn, {RandomInput({3, 4}, 1)}));
  EXPECT_TRUE(GradGradcheck(fn, {RandomInput({3, 4}, 1)}));
}

TEST(DropoutDeathTest, RefusesProbabilitiesOutOfRange) {
  EXPECT_DEATH(Dropout(Ones({2}), 1.5, 0, 0), "dropout of .* with p = 1.5");
}

}  // namespace
}  // namespace crosshatch
