// SPDX-License-Identifier: Apache-2.0
// Where the scores of attention leave the range of their dtype, which not every
// device's do: the reference computes in a wider one.
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/attention.h"
#include "crosshatch/tensor/ops/reduce.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

// If all scores overflow to -inf, the result is that of a query without keys.
TEST(AttentionOverflowTest, OfNothingButInfinitelyLowScoresGivesZeros) {
  for (DType dtype : {kFloat32, kFloat64, kBFloat16, kFloat16}) {
    // The scores of float16 are float32, so only the scale makes them overflow.
    const bool half = dtype == kFloat16;
    const double huge = dtype == kFloat64 ? 1e200 : half ? 6e4 : 1e30;
    const double scale = half ? 1e30 : 1;
    for (bool causal : {false, true}) {
      const Tensor q = Full({1, 3, 2, 2}, huge, dtype).set_requires_grad(true);
      const Tensor k = Full({1, 3, 1, 2}, -huge, dtype).set_requires_grad(true);
      const Tensor v = Ones({1, 3, 1, 2}, dtype).set_requires_grad(true);
      const Tensor out =
          causal ? CausalAttention(q, k, v, scale) : Attention(q, k, v, scale);
      EXPECT_THAT(out.ToVector<double>(), ::testing::Each(0));
      ASSERT_TRUE(Backward(Sum(out)).ok());
      for (const Tensor& x : {q, k, v}) {
        EXPECT_THAT(x.grad().ToVector<double>(), ::testing::Each(0));
      }
    }
  }
}

}  // namespace
}  // namespace crosshatch
