// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/ops/attention.h"

#include <cmath>
#include <limits>
#include <vector>

#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/gradcheck_testutil.h"
#include "crosshatch/tensor/ops/matmul.h"
#include "crosshatch/tensor/ops/norm.h"
#include "crosshatch/tensor/ops/pointwise.h"
#include "crosshatch/tensor/ops/reduce.h"
#include "crosshatch/tensor/ops/view.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

struct Sizes {
  int64_t batch, q_len, kv_len, q_heads, kv_heads, dim;
};

/// Attention by its definition, with the matrix of scores.
Tensor SlowAttention(const Tensor& q, const Tensor& k, const Tensor& v,
                     double scale, bool causal, int64_t window = 0) {
  const int64_t groups = q.size(2) / k.size(2);
  const auto repeat = [groups](const Tensor& t) {  // To [B, Hq, S, D].
    const Tensor spread = Expand(Unsqueeze(t, 3), {-1, -1, -1, groups, -1});
    return Transpose(Flatten(spread, 2, 3), 1, 2);
  };
  Tensor scores =
      Mul(MatMul(Transpose(q, 1, 2), repeat(k), false, true), scale);
  if (causal) {
    const int64_t t = q.size(1), s = k.size(1);
    const Tensor row = View(Arange(t, kInt64), {t, 1});
    const Tensor none = Full({}, -1e30, scores.dtype());
    const Tensor key = Expand(Arange(s, kInt64), {t, s});
    const Tensor own_key = Add(row, double(s - t));
    scores = Where(LessEqual(key, own_key), scores, none);
    if (window > 0) {
      scores =
          Where(LessEqual(key, Sub(own_key, double(window))), none, scores);
    }
  }
  return Transpose(MatMul(Softmax(scores), repeat(v)), 1, 2);
}

TEST(AttentionTest, MatchesTheDefinition) {
  for (const Sizes& z : {Sizes{2, 5, 5, 4, 2, 4}, Sizes{1, 1, 1, 1, 1, 2},
                         Sizes{1, 3, 7, 2, 2, 6}, Sizes{1, 33, 33, 3, 1, 8}}) {
    for (bool causal : {false, true}) {
      const auto make = [](Shape sizes, uint64_t seed) {
        return MakeInput(RandomInput(sizes, seed), TestLayout::kContiguous);
      };
      const Tensor q = make({z.batch, z.q_len, z.q_heads, z.dim}, 1);
      const Tensor k = make({z.batch, z.kv_len, z.kv_heads, z.dim}, 2);
      const Tensor v = make({z.batch, z.kv_len, z.kv_heads, z.dim}, 3);
      const std::vector<double> got =
          (causal ? CausalAttention(q, k, v, 0.5) : Attention(q, k, v, 0.5))
              .ToVector<double>();
      const std::vector<double> expected =
          SlowAttention(q, k, v, 0.5, causal).ToVector<double>();
      ASSERT_EQ(got.size(), expected.size());
      for (size_t i = 0; i < got.size(); ++i) {
        EXPECT_NEAR(got[i], expected[i], 1e-13);
      }
    }
  }
}

TEST(AttentionTest, SeesAWindow) {
  const auto make = [](Shape sizes, uint64_t seed) {
    return MakeInput(RandomInput(sizes, seed), TestLayout::kContiguous);
  };
  const Tensor q = make({2, 9, 4, 4}, 1);
  const Tensor k = make({2, 11, 2, 4}, 2);
  const Tensor v = make({2, 11, 2, 4}, 3);
  for (const int64_t window : {int64_t{1}, int64_t{3}, int64_t{11},
                               std::numeric_limits<int64_t>::max()}) {
    const std::vector<double> got =
        CausalAttention(q, k, v, 0.5, window).ToVector<double>();
    const std::vector<double> expected =
        SlowAttention(q, k, v, 0.5, true, window).ToVector<double>();
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_NEAR(got[i], expected[i], 1e-13) << "window " << window;
    }
  }
  EXPECT_TRUE(Gradcheck(
      [](TensorSpan in) {
        return CausalAttention(in[0], in[1], in[2], 0.7, 2);
      },
      {RandomInput({1, 4, 2, 2}, 1), RandomInput({1, 4, 1, 2}, 2),
       RandomInput({1, 4, 1, 2}, 3)}));
  EXPECT_DEATH(CausalAttention(q, k, v, 0.5, -1), "attention");
}

TEST(AttentionTest, HasGradients) {
  for (const Sizes& z : {Sizes{2, 3, 3, 2, 1, 2}, Sizes{1, 1, 1, 1, 1, 1},
                         Sizes{1, 2, 4, 2, 2, 2}, Sizes{0, 2, 2, 1, 1, 2}}) {
    for (bool causal : {false, true}) {
      EXPECT_TRUE(Gradcheck(
          [causal](TensorSpan in) {
            return causal ? CausalAttention(in[0], in[1], in[2], 0.7)
                          : Attention(in[0], in[1], in[2], 0.7);
          },
          {RandomInput({z.batch, z.q_len, z.q_heads, z.dim}, 1),
           RandomInput({z.batch, z.kv_len, z.kv_heads, z.dim}, 2),
           RandomInput({z.batch, z.kv_len, z.kv_heads, z.dim}, 3)}));
    }
  }
}

TEST(AttentionTest, IsDifferentiableOnce) {
  const Tensor q = Ones({1, 2, 1, 2}).set_requires_grad(true);
  const Tensor loss = Sum(CausalAttention(q, q, q, 1));
  EXPECT_DEATH(Backward(loss, {.create_graph = true}).IgnoreError(),
               "attention is differentiable once");
}

TEST(AttentionTest, RefusesWhatDoesNotFit) {
  const Tensor q = Ones({1, 2, 3, 4});
  EXPECT_DEATH(CausalAttention(q, Ones({1, 2, 2, 4}), Ones({1, 2, 2, 4}), 1),
               "attention of q f32\\[1, 2, 3, 4\\].*Hkv dividing Hq");
  EXPECT_DEATH(CausalAttention(q, q, Ones({1, 3, 3, 4}), 1), "attention of q");
  EXPECT_DEATH(CausalAttention(q, Ones(q.sizes(), kFloat64),
                               Ones(q.sizes(), kFloat64), 1),
               "attention.*dtypes differ");
}

}  // namespace
}  // namespace crosshatch
