// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/ops/view.h"

#include <vector>

#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/gradcheck_testutil.h"
#include "crosshatch/tensor/ops/cat.h"
#include "crosshatch/tensor/ops/pointwise.h"
#include "crosshatch/tensor/rank_context.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;

TEST(ViewTest, Aliases) {
  const Tensor a = Arange(6);
  for (const Tensor& view :
       {View(a, {2, 3}), View(a, {3, -1}), Unsqueeze(a, 0), Slice(a, 0, 1, 4),
        Select(a, 0, 2), Expand(View(a, {6, 1}), {6, 5}),
        Transpose(View(a, {2, 3}), 0, 1), Reshape(a, {6, 1, 1})}) {
    EXPECT_EQ(view.storage(), a.storage());
  }
}

TEST(ViewTest, GivesTheElementsOfEachShape) {
  const Tensor a = View(Arange(6), {2, 3});
  EXPECT_THAT(Transpose(a, 0, -1).ToVector<float>(),
              ElementsAre(0, 3, 1, 4, 2, 5));
  EXPECT_THAT(Permute(View(a, {1, 2, 3}), {2, 0, 1}).sizes(),
              ElementsAre(3, 1, 2));
  EXPECT_THAT(Slice(a, 1, 1, 3).ToVector<float>(), ElementsAre(1, 2, 4, 5));
  EXPECT_THAT(Slice(a, -1, -2, 100).ToVector<float>(), ElementsAre(1, 2, 4, 5));
  EXPECT_EQ(Slice(a, 0, 2, 1).sizes(), Shape({0, 3}));
  EXPECT_THAT(Narrow(a, 0, 1, 1).ToVector<float>(), ElementsAre(3, 4, 5));
  EXPECT_THAT(Select(a, 1, -1).ToVector<float>(), ElementsAre(2, 5));
  EXPECT_THAT(Expand(Select(a, 0, 0), {2, -1}).ToVector<float>(),
              ElementsAre(0, 1, 2, 0, 1, 2));
  EXPECT_EQ(Squeeze(Unsqueeze(a, 1), 1).sizes(), a.sizes());
  EXPECT_EQ(Unsqueeze(a, -1).sizes(), Shape({2, 3, 1}));
  EXPECT_EQ(Flatten(View(Arange(24), {2, 3, 4}), 1).sizes(), Shape({2, 12}));
  EXPECT_EQ(View(Zeros({0, 3}), {3, 0}).sizes(), Shape({3, 0}));
  EXPECT_EQ(View(Ones({1}), {}).sizes(), Shape({}));
  EXPECT_EQ(View(Ones({}), {1, 1}).sizes(), Shape({1, 1}));
}

/// Returns the elements of a strided tensor in order.
std::vector<float> Flat(const Tensor& a) { return a.ToVector<float>(); }

TEST(ViewTest, OfStridedTensorsIsAViewWhereStridesAllowIt) {
  struct Case {
    Tensor from;
    Shape to;
    bool view;
  };
  const Tensor base = View(Arange(2 * 3 * 4), {2, 3, 4});
  const Case cases[] = {
      {Slice(base, 0, 0, 1), {3, 4}, true},
      {Slice(base, 1, 1, 3), {2, 8}, true},
      {Slice(base, 1, 1, 3), {4, 4}, false},
      {Slice(base, 1, 1, 3), {2, 2, 2, 2}, true},
      {Slice(base, 2, 1, 3), {6, 2}, true},
      {Slice(base, 2, 1, 3), {12}, false},
      {Transpose(base, 0, 1), {3, 2, 2, 2}, true},
      {Transpose(base, 0, 1), {6, 4}, false},
      {Transpose(base, 1, 2), {2, 12}, false},
      {Expand(Slice(base, 0, 0, 1), {2, 3, 4}), {2, 12}, true},
      {Expand(Slice(base, 0, 0, 1), {2, 3, 4}), {24}, false},
      {Select(base, 2, 1), {6}, true},
      {Select(base, 2, 1), {1, 2, 1, 3, 1}, true},
      {Slice(base, 1, 0, 0), {7, 0}, true},
  };
  for (const Case& c : cases) {
    const Tensor reshaped = Reshape(c.from, c.to);
    EXPECT_EQ(reshaped.storage() == base.storage(), c.view)
        << ToString(c.from.sizes()) << ToString(c.from.strides())
        << ToString(c.to);
    EXPECT_THAT(Flat(reshaped), ElementsAreArray(Flat(c.from)));
    EXPECT_EQ(reshaped.sizes(), c.to);
  }
  EXPECT_DEATH(View(Transpose(base, 0, 1), {24}), "its strides do not allow");
}

TEST(ViewTest, CountsTheBytesOfCopies) {
  RankContext& context = RankContext::Current();
  const Tensor a = Transpose(Zeros({2, 3}), 0, 1);
  const int64_t before = context.copied_bytes();
  Reshape(a, {3, 2, 1});
  EXPECT_EQ(context.copied_bytes(), before);
  Reshape(a, {6});
  EXPECT_EQ(context.copied_bytes(), before + 24);
}

TEST(ViewTest, RefusesWhatDoesNotFit) {
  const Tensor a = Zeros({2, 3});
  EXPECT_DEATH(View(a, {4}), "view of f32\\[2, 3\\].*as \\[4\\]");
  EXPECT_DEATH(View(a, {-1, -1}), "one -1");
  EXPECT_DEATH(View(a, {4, -1}), "another number of elements");
  EXPECT_DEATH(Squeeze(a, 0), "squeeze of dim 0 of f32\\[2, 3\\]");
  EXPECT_DEATH(Permute(a, {0, 0}), "a dim twice");
  EXPECT_DEATH(Narrow(a, 1, 2, 2), "narrow of dim 1 of f32\\[2, 3\\]");
  EXPECT_DEATH(Select(a, 0, 2), "select of 2 in dim 0");
  EXPECT_DEATH(Expand(a, {4, 3}), "expand of f32\\[2, 3\\].*to \\[4, 3\\]");
  EXPECT_DEATH(Expand(a, {3}), "expand of f32\\[2, 3\\].*to \\[3\\]");
  EXPECT_DEATH(Transpose(a, 0, 2), "transpose");
}

TEST(ViewTest, UnflattensAndMovesDims) {
  const Tensor a = View(Arange(24), {2, 12});
  const Tensor split = Unflatten(a, -1, {3, -1, 2});
  EXPECT_EQ(split.sizes(), Shape({2, 3, 2, 2}));
  EXPECT_EQ(split.ToVector<float>(), a.ToVector<float>());
  EXPECT_EQ(split.storage(), a.storage());
  EXPECT_EQ(Unflatten(Zeros({0, 2}), 0, {3, -1}).sizes(), Shape({3, 0, 2}));
  EXPECT_EQ(Unflatten(Zeros({0}), 0, {0, -1}).sizes(), Shape({0, 0}));
  EXPECT_DEATH(Unflatten(a, 1, {5, -1}), "unflatten of dim 1 of f32");
  EXPECT_DEATH(Unflatten(a, 1, {-1, -1}), "unflatten of dim 1 of f32");

  const Tensor b = View(Arange(24), {2, 3, 4});
  EXPECT_EQ(MoveDim(b, 0, -1).sizes(), Shape({3, 4, 2}));
  EXPECT_EQ(MoveDim(b, 0, -1).ToVector<float>(),
            Permute(b, {1, 2, 0}).ToVector<float>());
  EXPECT_EQ(MoveDim(b, 2, 0).ToVector<float>(),
            Permute(b, {2, 0, 1}).ToVector<float>());
  EXPECT_EQ(MoveDim(b, 1, 1).ToVector<float>(), b.ToVector<float>());
}

TEST(ViewTest, HasGradients) {
  const TensorFunction all = [](TensorSpan in) {
    const Tensor& a = in[0];  // [2, 3]
    const Tensor b = Reshape(Transpose(a, 0, 1), {6});
    const Tensor c = Expand(Unsqueeze(Slice(b, 0, 1, 4), 0), {2, 3});
    const Tensor d = Permute(Reshape(a, {1, 2, 3}), {1, 2, 0});
    return Mul(Add(c, Squeeze(d, 2)), Select(a, 0, 1));
  };
  EXPECT_TRUE(Gradcheck(all, {RandomInput({2, 3}, 1)}));
  EXPECT_TRUE(GradGradcheck(all, {RandomInput({2, 3}, 1)}));
  EXPECT_TRUE(Gradcheck(
      [](TensorSpan in) {
        return Square(Slice(Expand(in[0], {2, 3, 2}), 1, 0, 2));
      },
      {RandomInput({3, 1}, 1)}));
  EXPECT_TRUE(
      Gradcheck([](TensorSpan in) { return Square(Slice(in[0], 0, 1, 1)); },
                {RandomInput({2, 2}, 1)}));
}

TEST(PadTest, PutsZerosAround) {
  const Tensor a = View(Add(Arange(4), 1), {2, 2});
  EXPECT_THAT(Pad(a, 1, 1, 0).ToVector<float>(), ElementsAre(0, 1, 2, 0, 3, 4));
  EXPECT_THAT(Pad(a, 0, 0, 1).ToVector<float>(), ElementsAre(1, 2, 3, 4, 0, 0));
  EXPECT_TRUE(Gradcheck(
      [](TensorSpan in) { return Square(Add(Pad(in[0], -1, 2, 1), 1)); },
      {RandomInput({2, 2}, 1)}));
  EXPECT_DEATH(Pad(a, 0, -1, 0), "pad of f32\\[2, 2\\]");
}

}  // namespace
}  // namespace crosshatch
