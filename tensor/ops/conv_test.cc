// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/ops/conv.h"

#include <vector>

#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/gradcheck_testutil.h"
#include "crosshatch/tensor/ops/ops.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Returns small integers, whose sums are exact.
Tensor Whole(const Shape& sizes, int64_t seed) {
  std::vector<float> values;
  for (int64_t i = 0; i < NumElements(sizes); ++i) {
    values.push_back(static_cast<float>((i * 5 + seed) % 7 - 3));
  }
  return FromValues<float>(sizes, values);
}

/// Computes one output at a time by the definition.
std::vector<float> Direct(const Tensor& x, const Tensor& weight,
                          const Tensor& bias, const Conv2dOptions& options,
                          const Shape& sizes) {
  const std::vector<float> in = x.ToVector<float>();
  const std::vector<float> w = weight.ToVector<float>();
  const int64_t depth = weight.size(1);
  const int64_t outs = sizes[1] / options.groups;
  std::vector<float> result;
  for (int64_t i = 0; i < NumElements(sizes); ++i) {
    const int64_t ow = i % sizes[3];
    const int64_t oh = i / sizes[3] % sizes[2];
    const int64_t o = i / sizes[3] / sizes[2] % sizes[1];
    const int64_t n = i / sizes[3] / sizes[2] / sizes[1];
    float sum =
        bias.defined() ? bias.ToVector<float>()[static_cast<size_t>(o)] : 0;
    for (int64_t c = 0; c < depth; ++c) {
      for (int64_t kh = 0; kh < weight.size(2); ++kh) {
        for (int64_t kw = 0; kw < weight.size(3); ++kw) {
          const WindowOptions& at = options.windows;
          const int64_t h =
              oh * at.stride[0] + kh * at.dilation[0] - at.padding[0];
          const int64_t v =
              ow * at.stride[1] + kw * at.dilation[1] - at.padding[1];
          if (h < 0 || h >= x.size(2) || v < 0 || v >= x.size(3)) continue;
          const int64_t channel = o / outs * depth + c;
          sum += in[static_cast<size_t>(
                     ((n * x.size(1) + channel) * x.size(2) + h) * x.size(3) +
                     v)] *
                 w[static_cast<size_t>(((o * depth + c) * weight.size(2) + kh) *
                                           weight.size(3) +
                                       kw)];
        }
      }
    }
    result.push_back(sum);
  }
  return result;
}

struct ConvCase {
  Shape x;
  Shape weight;
  Conv2dOptions options;
  Shape y;
};

std::vector<ConvCase> ConvCases() {
  return {
      {{2, 3, 5, 4}, {2, 3, 1, 1}, {}, {2, 2, 5, 4}},
      {{1, 2, 8, 4},
       {3, 2, 4, 2},
       {.windows = {.stride = {4, 2}}},
       {1, 3, 2, 2}},
      {{2, 2, 7, 5},
       {3, 2, 3, 3},
       {.windows = {.stride = {2, 1}, .padding = {1, 2}}},
       {2, 3, 4, 7}},
      {{1, 4, 6, 6},
       {6, 2, 2, 3},
       {.windows = {.dilation = {2, 1}}, .groups = 2},
       {1, 6, 4, 4}},
      {{2, 3, 4, 4},
       {3, 1, 3, 3},
       {.windows = {.padding = {1, 1}}, .groups = 3},
       {2, 3, 4, 4}},
      {{0, 2, 4, 4}, {3, 2, 2, 2}, {}, {0, 3, 3, 3}},
  };
}

TEST(ConvTest, IsTheSumOverItsWindows) {
  for (const ConvCase& c : ConvCases()) {
    const Tensor x = Whole(c.x, 1);
    const Tensor weight = Whole(c.weight, 2);
    const Tensor bias = Whole({c.weight[0]}, 3);
    for (const Tensor& b : {bias, Tensor()}) {
      const Tensor y = Conv2d(x, weight, b, c.options);
      EXPECT_EQ(y.sizes(), c.y);
      EXPECT_EQ(y.ToVector<float>(), Direct(x, weight, b, c.options, c.y));
    }
  }
}

TEST(ConvTest, GradientsMatchDifferences) {
  for (const ConvCase& c : ConvCases()) {
    const TensorFunction conv = [&c](TensorSpan in) {
      return Conv2d(in[0], in[1], in[2], c.options);
    };
    const std::vector<TestInput> inputs = {RandomInput(c.x, 1),
                                           RandomInput(c.weight, 2),
                                           RandomInput({c.weight[0]}, 3)};
    EXPECT_TRUE(Gradcheck(conv, inputs)) << ToString(c.x);
  }
  EXPECT_TRUE(GradGradcheck(
      [](TensorSpan in) {
        return Square(
            Conv2d(in[0], in[1], Tensor(), {.windows = {.stride = {2, 1}}}));
      },
      {RandomInput({1, 2, 3, 3}, 4), RandomInput({2, 2, 2, 2}, 5)}));
}

TEST(ConvTest, OfOneDim) {
  const Tensor x = FromValues<float>({1, 1, 5}, {1, 2, 3, 4, 5});
  const Tensor weight = FromValues<float>({1, 1, 3}, {1, 0, -1});
  EXPECT_THAT(Conv1d(x, weight).ToVector<float>(), ElementsAre(-2, -2, -2));
  const Tensor y = Conv1d(x, weight, Ones({1}), {.stride = 2, .padding = 1});
  EXPECT_EQ(y.sizes(), (Shape{1, 1, 3}));
  EXPECT_THAT(y.ToVector<float>(), ElementsAre(-1, -1, 5));
}

TEST(ConvDeathTest, NamesWhatDoesNotFit) {
  EXPECT_DEATH((void)Conv2d(Ones({1, 2, 3, 3}), Ones({1, 3, 1, 1})),
               "conv of f32\\[1, 2, 3, 3\\] on .* by a weight of");
  EXPECT_DEATH((void)Conv2d(Ones({1, 2, 3, 3}), Ones({1, 2, 4, 1})),
               "no window of 4 with dilation 1 fits in dim 2");
  EXPECT_DEATH((void)Unfold(Ones({1, 2, 3, 3}), {1, 1}, {.stride = {0, 1}}),
               HasSubstr("stride 0"));
  EXPECT_DEATH((void)Conv1d(Ones({2, 3}), Ones({1, 2, 3})), "\\[N, C, L\\]");
  EXPECT_DEATH((void)Conv1d(Ones({1, 3, 5}), Ones({1, 2, 3})),
               "conv of f32\\[1, 3, 5\\] on .* by a weight of");
}

}  // namespace
}  // namespace crosshatch
