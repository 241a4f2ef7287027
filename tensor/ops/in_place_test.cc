// SPDX-License-Identifier: Apache-2.0
// Checks the values written. autograd_test.cc checks their histories.
#include "crosshatch/tensor/ops/in_place.h"

#include <vector>

#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

TEST(InPlaceOpsTest, ConvertAndBroadcast) {
  for (DType to : {kFloat32, kFloat64, kBFloat16, kFloat16, kInt64}) {
    for (DType from : {kFloat32, kFloat64, kBFloat16, kFloat16, kInt32}) {
      const Tensor dst = Full({2, 2}, 1, to);
      const Tensor src = Arange(2, from);
      AddInPlace(dst, src);
      EXPECT_THAT(dst.ToVector<float>(), ElementsAre(1, 2, 1, 2));
      AddInPlace(dst, src, -3);
      EXPECT_THAT(dst.ToVector<float>(), ElementsAre(1, -1, 1, -1));
      MulInPlace(dst, Full({}, 2, from));
      EXPECT_THAT(dst.ToVector<float>(), ElementsAre(2, -2, 2, -2));
      MulInPlace(dst, 3);
      EXPECT_THAT(dst.ToVector<float>(), ElementsAre(6, -6, 6, -6));
      CopyInPlace(dst, src);
      EXPECT_THAT(dst.ToVector<float>(), ElementsAre(0, 1, 0, 1));
      EXPECT_EQ(dst.dtype(), to);
    }
  }
}

TEST(InPlaceOpsTest, WriteThroughViews) {
  const Tensor a = Zeros({2, 3});
  FillInPlace(Select(a, 1, 2), 5);
  CopyInPlace(Transpose(a, 0, 1), FromValues<float>({2}, {1, 2}));
  EXPECT_THAT(a.ToVector<float>(), ElementsAre(1, 1, 1, 2, 2, 2));
  AddInPlace(a, a);
  EXPECT_THAT(a.ToVector<float>(), ElementsAre(2, 2, 2, 4, 4, 4));
  ZeroInPlace(a);
  EXPECT_THAT(a.ToVector<float>(), Each(0));
  ZeroInPlace(Zeros({0, 3}));
}

TEST(InPlaceOpsTest, CountWrites) {
  const Tensor a = Zeros({2});
  const uint32_t before = a.storage()->version();
  AddInPlace(a, a);
  MulInPlace(Slice(a, 0, 0, 1), 2);
  MulInPlace(a, a);
  CopyInPlace(a, a);
  ZeroInPlace(a);
  EXPECT_EQ(a.storage()->version(), before + 5);
}

TEST(InPlaceOpsTest, RefuseWhatDoesNotFit) {
  const Tensor a = Zeros({2});
  EXPECT_DEATH(AddInPlace(a, Zeros({3})), "add_in_place.*\\[2\\].*\\[3\\]");
  EXPECT_DEATH(CopyInPlace(a, Zeros({2, 2})),
               "copy_in_place: .*\\[2, 2\\].*does not broadcast");
  EXPECT_DEATH(CopyInPlace(Expand(Zeros({1}), {3}), Zeros({3})),
               "copy_in_place into an expanded tensor");
  EXPECT_DEATH(AddInPlace(Zeros({2}, kBool), a), "add_in_place into bool");
  const Tensor x = Zeros({2}).set_requires_grad(true);
  EXPECT_DEATH(MulInPlace(a, x), "mul_in_place.*not differentiable");
}

}  // namespace
}  // namespace crosshatch
