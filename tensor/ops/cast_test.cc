// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/ops/cast.h"

#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/gradcheck_testutil.h"
#include "crosshatch/tensor/ops/pointwise.h"
#include "crosshatch/tensor/ops/reduce.h"
#include "crosshatch/tensor/ops/view.h"
#include "crosshatch/tensor/rank_context.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using ::testing::ElementsAre;

TEST(CastTest, ConvertsEveryPair) {
  const DType all[] = {kFloat32, kFloat64, kBFloat16, kFloat16,
                       kInt32,   kInt64,   kUInt16,   kBool};
  for (DType from : all) {
    for (DType to : all) {
      const Tensor b = ToDType(ToDType(Arange(2, kInt64), from), to);
      EXPECT_EQ(b.dtype(), to);
      EXPECT_THAT(b.ToVector<int64_t>(), ElementsAre(0, 1));
    }
  }
}

TEST(CastTest, CopiesOnlyWhereNeeded) {
  const Tensor a = Ones({2, 3});
  EXPECT_TRUE(ToDType(a, kFloat32).SameAs(a));
  EXPECT_TRUE(Contiguous(a).SameAs(a));
  EXPECT_NE(Clone(a).storage(), a.storage());
  const Tensor strided = Transpose(a, 0, 1);
  EXPECT_TRUE(Contiguous(strided).is_contiguous());
  EXPECT_TRUE(Clone(strided).is_contiguous());
}

TEST(CastTest, CountsTheBytesOfCopies) {
  RankContext& context = RankContext::Current();
  const Tensor a = Ones({2, 3});
  const Tensor strided = Transpose(a, 0, 1);
  const int64_t before = context.copied_bytes();
  Contiguous(a);
  ToDType(a, kFloat64);
  EXPECT_EQ(context.copied_bytes(), before);
  Contiguous(strided);
  EXPECT_EQ(context.copied_bytes(), before + 24);
  Clone(a);
  EXPECT_EQ(context.copied_bytes(), before + 48);
  Clone(Zeros({0, 3}));
  EXPECT_EQ(context.copied_bytes(), before + 48);
}

TEST(CastTest, HasGradients) {
  for (const Shape& sizes : {Shape{2, 3}, Shape{}, Shape{0}}) {
    EXPECT_TRUE(Gradcheck(
        [](TensorSpan in) {
          return Add(Clone(in[0]),
                     Square(in[0].ndim() == 2
                                ? Contiguous(Transpose(
                                      Contiguous(Transpose(in[0], 0, 1)), 0, 1))
                                : Contiguous(in[0])));
        },
        {RandomInput(sizes, 1)}));
  }
}

TEST(CastTest, GradientsGoBackInTheInputsDType) {
  const Tensor x = Full({2}, 3, kFloat64).set_requires_grad(true);
  const Tensor y = Mul(x, 2.0);
  const Tensor z = ToDType(y, kBFloat16);
  EXPECT_FALSE(ToDType(y, kInt32).requires_grad());
  const TensorList gradients = Gradients(Sum(Square(z)), {y, z}).value();
  EXPECT_EQ(gradients[0].dtype(), kFloat64);
  EXPECT_EQ(gradients[1].dtype(), kBFloat16);
  EXPECT_THAT(gradients[0].ToVector<double>(), ElementsAre(12, 12));
}

}  // namespace
}  // namespace crosshatch
