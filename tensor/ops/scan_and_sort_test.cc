// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/ops/scan_and_sort.h"

#include <cmath>
#include <limits>
#include <vector>

#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/gradcheck_testutil.h"
#include "crosshatch/tensor/ops/cast.h"
#include "crosshatch/tensor/ops/pointwise.h"
#include "crosshatch/tensor/ops/reduce.h"
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

TEST(CumSumTest, GivesTheDocumentedDTypes) {
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

using ::testing::ElementsAre;

TEST(SortTest, SortsAlongAnyDim) {
  const Tensor a = FromValues<float>({2, 3}, {3, 1, 2, 0, 5, 2});
  const Sorted rows = Sort(a);
  EXPECT_THAT(rows.values.ToVector<float>(), ElementsAre(1, 2, 3, 0, 2, 5));
  EXPECT_THAT(rows.indices.ToVector<int64_t>(), ElementsAre(1, 2, 0, 0, 2, 1));
  const Sorted columns = Sort(a, 0, /*descending=*/true);
  EXPECT_THAT(columns.values.ToVector<float>(), ElementsAre(3, 5, 2, 0, 1, 2));
  EXPECT_THAT(columns.indices.ToVector<int64_t>(),
              ElementsAre(0, 1, 0, 1, 0, 1));
  EXPECT_THAT(Sort(Transpose(a, 0, 1), 0).values.ToVector<float>(),
              ElementsAre(1, 0, 2, 2, 3, 5));
  EXPECT_DEATH(Sort(a, 2), "sort: dim 2");
}

TEST(SortTest, IsStableAndPutsNaNLast) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const Tensor a = FromValues<double>({6}, {nan, 1, -0.0, 0, nan, 1});
  EXPECT_THAT(Sort(a).indices.ToVector<int64_t>(),
              ElementsAre(2, 3, 1, 5, 0, 4));
  EXPECT_THAT(Sort(a, 0, true).indices.ToVector<int64_t>(),
              ElementsAre(0, 4, 1, 5, 2, 3));
}

TEST(SortTest, TakesAnyShape) {
  const Sorted one = Sort(Full({}, 3), -1);
  EXPECT_EQ(one.values.sizes(), Shape({}));
  EXPECT_THAT(one.indices.ToVector<int64_t>(), ElementsAre(0));
  EXPECT_EQ(Sort(Zeros({0, 3}), 0).values.sizes(), Shape({0, 3}));
  EXPECT_EQ(Sort(Zeros({0, 3}), 1).indices.sizes(), Shape({0, 3}));
  EXPECT_EQ(Sort(Zeros({2, 1}, kInt32)).values.dtype(), kInt32);
  EXPECT_EQ(Sort(Zeros({2, 1}, kBool)).indices.dtype(), kInt64);
}

TEST(TopKTest, TakesTheFirstOfTheSort) {
  const Tensor a = FromValues<float>({5}, {3, 1, 4, 1, 4});
  const Sorted largest = TopK(a, 3);
  EXPECT_THAT(largest.values.ToVector<float>(), ElementsAre(4, 4, 3));
  EXPECT_THAT(largest.indices.ToVector<int64_t>(), ElementsAre(2, 4, 0));
  const Sorted smallest = TopK(a, 1, 0, /*largest=*/false);
  EXPECT_THAT(smallest.indices.ToVector<int64_t>(), ElementsAre(1));
  const Sorted any = TopK(a, 3, 0, true, /*sorted=*/false);
  EXPECT_THAT(any.indices.ToVector<int64_t>(), ElementsAre(0, 2, 4));
  EXPECT_THAT(any.values.ToVector<float>(), ElementsAre(3, 4, 4));
  EXPECT_EQ(TopK(a, 0).values.sizes(), Shape({0}));
  EXPECT_EQ(TopK(Zeros({2, 3}), 1, 0).values.sizes(), Shape({1, 3}));
  EXPECT_EQ(TopK(Full({}, 2), 1).values.sizes(), Shape({}));
  EXPECT_DEATH(TopK(a, 6), "topk of f32\\[5\\].*6 elements");
  EXPECT_DEATH(TopK(a, -1), "topk of f32\\[5\\]");
}

TEST(SortTest, HasGradients) {
  for (int dim : {0, 1}) {
    const TensorFunction sort = [dim](TensorSpan in) {
      return Sort(in[0], dim).values;
    };
    EXPECT_TRUE(Gradcheck(sort, {RandomInput({4, 3}, 1)}));
    EXPECT_TRUE(Gradcheck(sort, {RandomInput({2, 0}, 1)}));
    EXPECT_TRUE(
        GradGradcheck([&sort](TensorSpan in) { return Square(sort(in)); },
                      {RandomInput({3, 2}, 1)}));
    for (bool sorted : {false, true}) {
      EXPECT_TRUE(Gradcheck(
          [=](TensorSpan in) {
            return Square(TopK(in[0], 2, dim, sorted, sorted).values);
          },
          {RandomInput({4, 3}, 2)}));
    }
  }
  EXPECT_TRUE(Gradcheck([](TensorSpan in) { return Sort(in[0]).values; },
                        {RandomInput({}, 1)}));
}

}  // namespace
}  // namespace crosshatch
