// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/ops/embedding.h"

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

using ::testing::ElementsAre;

TEST(EmbeddingTest, LooksRowsUp) {
  const Tensor table = View(Arange(6), {3, 2});
  const Tensor ids = FromValues<int64_t>({2, 2}, {2, 0, 1, 2});
  for (DType dtype : {kInt64, kInt32, kUInt16}) {
    const Tensor rows = Embedding(ToDType(ids, dtype), table);
    EXPECT_EQ(rows.sizes(), Shape({2, 2, 2}));
    EXPECT_THAT(rows.ToVector<float>(), ElementsAre(4, 5, 0, 1, 2, 3, 4, 5));
  }
}

TEST(EmbeddingTest, GivesZerosForRowsOfOtherShards) {
  const Tensor shard = View(Add(Arange(4), 1), {2, 2});  // Rows 3 and 4.
  const Tensor ids = FromValues<int64_t>({4}, {2, 3, 4, 5});
  EXPECT_THAT(Apply1(EmbeddingOp(3, 6), {ids, shard}).ToVector<float>(),
              ElementsAre(0, 0, 1, 2, 3, 4, 0, 0));
  const Tensor grad = Apply1(EmbeddingGradOp(2, 3), {ids, Ones({4, 2})});
  EXPECT_THAT(grad.ToVector<float>(), ElementsAre(1, 1, 1, 1));
}

TEST(EmbeddingTest, HasGradients) {
  const Tensor ids = FromValues<int64_t>({2, 2}, {2, 0, 2, 2});
  const TensorFunction fn = [&](TensorSpan in) {
    return Embedding(ids, in[0]);
  };
  EXPECT_TRUE(Gradcheck(fn, {RandomInput({3, 2}, 1)}));
  EXPECT_TRUE(GradGradcheck([&](TensorSpan in) { return Square(fn(in)); },
                            {RandomInput({3, 2}, 1)}));
  const Tensor none = FromValues<int64_t>({0}, {});
  EXPECT_TRUE(Gradcheck([&](TensorSpan in) { return Embedding(none, in[0]); },
                        {RandomInput({3, 2}, 1)}));
}

TEST(EmbeddingTest, RefusesWhatDoesNotFit) {
  EXPECT_DEATH(Embedding(Ones({2}), Ones({3, 2})),
               "embedding with indices f32\\[2\\]");
  EXPECT_DEATH(Embedding(Ones({2}, kInt64), Ones({3})),
               "embedding of i64\\[2\\].*in f32\\[3\\]");
  // A device may report it when the host next waits.
  EXPECT_DEATH(
      Embedding(FromValues<int64_t>({3}, {0, 2, 3}), Ones({3, 2}))
          .ToVector<float>(),
      "embedding: id 3 at 2 is out of range: there are 3 rows in the table");
  EXPECT_DEATH(
      Embedding(FromValues<int64_t>({1}, {-1}), Ones({3, 2})).ToVector<float>(),
      "embedding: id -1 at 0 is out of range");
}

}  // namespace
}  // namespace crosshatch
