// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/ops/cumsum.h"

#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/gradcheck_testutil.h"
#include "crosshatch/tensor/ops/cast.h"
#include "crosshatch/tensor/ops/pointwise.h"
#include "crosshatch/tensor/ops/view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

TEST(CumSumTest, SumsAlongAnyDim) {
  const Tensor a = View(Arange(6), {2, 3});
  EXPECT_THAT(CumSum(a, 0).ToVector<float>(), ElementsAre(0, 1, 2, 3, 5, 7));
  EXPECT_THAT(CumSum(a, -1).ToVector<float>(), ElementsAre(0, 1, 3, 3, 7, 12));
  EXPECT_THAT(CumSum(Transpose(a, 0, 1), 0).ToVector<float>(),
              ElementsAre(0, 3, 1, 7, 3, 12));
  EXPECT_THAT(CumSum(Full({}, 3), 0).ToVector<float>(), ElementsAre(3));
  EXPECT_EQ(CumSum(Full({}, 3), -1).sizes(), Shape({}));
  EXPECT_EQ(CumSum(Zeros({0, 3}), 0).sizes(), Shape({0, 3}));
  EXPECT_DEATH(CumSum(a, 2), "cumsum: dim 2");
  EXPECT_DEATH(CumSum(Full({}, 3), 1), "cumsum: dim 1");
}

TEST(CumSumTest, GivesTheDTypesItSays) {
  EXPECT_THAT(CumSum(Ones({3}, kBool), 0).ToVector<int64_t>(),
              ElementsAre(1, 2, 3));
  EXPECT_EQ(CumSum(Ones({3}, kInt32), 0).dtype(), kInt64);
  // In bf16, 256 + 1 would round to 256.
  const Tensor a = CumSum(Ones({300}, kBFloat16), 0);
  EXPECT_EQ(a.dtype(), kBFloat16);
  EXPECT_EQ(a.ToVector<float>()[299], 300);
}

TEST(CumSumTest, HasGradients) {
  for (int dim : {0, 1}) {
    const TensorFunction fn = [dim](TensorSpan in) {
      return CumSum(in[0], dim);
    };
    EXPECT_TRUE(Gradcheck(fn, {RandomInput({3, 4}, 1)}));
    EXPECT_TRUE(Gradcheck(fn, {RandomInput({0, 2}, 1)}));
    EXPECT_TRUE(GradGradcheck([&fn](TensorSpan in) { return Square(fn(in)); },
                              {RandomInput({3, 2}, 1)}));
  }
  EXPECT_TRUE(Gradcheck([](TensorSpan in) { return CumSum(in[0], 0); },
                        {RandomInput({}, 1)}));
}

}  // namespace
}  // namespace crosshatch
