// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/ops/attention.h"

#include <cmath>
#include <limits>
#include <vector>

#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/gradcheck_testutil.h"
#include "crosshatch/tensor/ops/cast.h"
#include "crosshatch/tensor/ops/dropout.h"
#include "crosshatch/tensor/ops/embedding.h"
#include "crosshatch/tensor/ops/matmul.h"
#include "crosshatch/tensor/ops/norm.h"
#include "crosshatch/tensor/ops/pointwise.h"
#include "crosshatch/tensor/ops/reduce.h"
#include "crosshatch/tensor/ops/view.h"
#include "crosshatch/tensor/tensor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

struct Sizes {
  int64_t batch, q_len, kv_len, q_heads, kv_heads, dim;
};

/// Computes attention by its definition, with the matrix of scores. Adds
/// `added`, broadcast to [B, Hq, T, S], to the scores and multiplies the
/// probabilities by `kept`.
Tensor SlowAttention(const Tensor& q, const Tensor& k, const Tensor& v,
                     double scale, bool causal, int64_t window = 0,
                     const Tensor& added = Tensor(),
                     const Tensor& kept = Tensor()) {
  const int64_t groups = q.size(2) / k.size(2);
  const auto repeat = [groups](const Tensor& t) {  // To [B, Hq, S, D].
    const Tensor spread = Expand(Unsqueeze(t, 3), {-1, -1, -1, groups, -1});
    return Transpose(Flatten(spread, 2, 3), 1, 2);
  };
  Tensor scores =
      Mul(MatMul(Transpose(q, 1, 2), repeat(k), false, true), scale);
  if (added.defined()) scores = Add(scores, added);
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
  Tensor p = Softmax(scores);
  if (kept.defined()) p = Mul(p, kept);
  return Transpose(MatMul(p, repeat(v)), 1, 2);
}

Tensor Input(Shape sizes, uint64_t seed) {
  return MakeInput(RandomInput(sizes, seed), TestLayout::kContiguous);
}

void ExpectNear(const Tensor& actual, const Tensor& expected) {
  const std::vector<double> a = actual.ToVector<double>();
  const std::vector<double> e = expected.ToVector<double>();
  ASSERT_EQ(a.size(), e.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], e[i], 1e-13);
}

TEST(AttentionTest, MatchesTheDefinition) {
  for (const Sizes& z : {Sizes{2, 5, 5, 4, 2, 4}, Sizes{1, 1, 1, 1, 1, 2},
                         Sizes{1, 3, 7, 2, 2, 6}, Sizes{1, 33, 33, 3, 1, 8}}) {
    for (bool causal : {false, true}) {
      const Tensor q = Input({z.batch, z.q_len, z.q_heads, z.dim}, 1);
      const Tensor k = Input({z.batch, z.kv_len, z.kv_heads, z.dim}, 2);
      const Tensor v = Input({z.batch, z.kv_len, z.kv_heads, z.dim}, 3);
      ExpectNear(
          causal ? CausalAttention(q, k, v, 0.5) : Attention(q, k, v, 0.5),
          SlowAttention(q, k, v, 0.5, causal));
    }
  }
}

TEST(AttentionTest, SeesAWindow) {
  const Tensor q = Input({2, 9, 4, 4}, 1);
  const Tensor k = Input({2, 11, 2, 4}, 2);
  const Tensor v = Input({2, 11, 2, 4}, 3);
  for (const int64_t window : {int64_t{1}, int64_t{3}, int64_t{11},
                               std::numeric_limits<int64_t>::max()}) {
    SCOPED_TRACE(window);
    ExpectNear(CausalAttention(q, k, v, 0.5, window),
               SlowAttention(q, k, v, 0.5, true, window));
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

// Three queries of two heads, one key head, four keys.
struct Small {
  Tensor q = Input({2, 3, 2, 2}, 1);
  Tensor k = Input({2, 4, 1, 2}, 2);
  Tensor v = Input({2, 4, 1, 2}, 3);
};

TEST(AttentionTest, AddsAMask) {
  const Small x;
  for (const Shape& sizes : {Shape{}, Shape{4}, Shape{3, 1}, Shape{2, 1, 4},
                             Shape{2, 1, 3, 4}, Shape{2, 2, 3, 4}}) {
    const Tensor mask = Input(sizes, 4);
    ExpectNear(Attention(x.q, x.k, x.v, {.scale = 0.5, .mask = mask}),
               SlowAttention(x.q, x.k, x.v, 0.5, false, 0, mask));
  }
  const Tensor seen = ToDType(FromValues<float>({4}, {1, 0, 1, 1}), kBool);
  const Tensor hidden = FromValues<double>({4}, {0, -1e30, 0, 0});
  ExpectNear(
      Attention(x.q, x.k, x.v, {.scale = 0.5, .causal = true, .mask = seen}),
      SlowAttention(x.q, x.k, x.v, 0.5, true, 0, hidden));
  EXPECT_TRUE(Gradcheck(
      [&](TensorSpan in) {
        return Attention(in[0], in[1], in[2], {.mask = seen});
      },
      {RandomInput({1, 2, 2, 2}, 1), RandomInput({1, 4, 1, 2}, 2),
       RandomInput({1, 4, 1, 2}, 3)}));
}

TEST(AttentionTest, SubtractsDistances) {
  const Small x;
  // Query i is at the position of key i + 1.
  const Tensor distances =
      FromValues<double>({1, 3, 4}, {1, 0, 1, 2, 2, 1, 0, 1, 3, 2, 1, 0});
  const Tensor slopes = FromValues<float>({2}, {0.5f, 2.0f});
  const Tensor added =
      Mul(Mul(distances, View(ToDType(slopes, kFloat64), {2, 1, 1})), -1.0);
  for (bool causal : {false, true}) {
    ExpectNear(Attention(x.q, x.k, x.v,
                         {.scale = 0.5, .causal = causal, .slopes = slopes}),
               SlowAttention(x.q, x.k, x.v, 0.5, causal, 0, added));
  }
  EXPECT_THAT(AlibiSlopes(4).ToVector<double>(),
              ::testing::ElementsAre(0.25, 0.0625, 0.015625, 0.00390625));
  EXPECT_THAT(AlibiSlopes(3).ToVector<double>(),
              ::testing::ElementsAre(0.0625, 0.00390625, 0.25));
  EXPECT_THAT(AlibiSlopes(0).ToVector<double>(), ::testing::ElementsAre());
}

TEST(AttentionTest, DropsWhatDropoutDrops) {
  const Small x;
  const Shape probabilities = {5, 7, 3, 4};
  const Tensor kept = Dropout(Ones(probabilities, kFloat64), 0.3, 11, 12);
  const AttentionOptions options = {.scale = 0.5,
                                    .dropout = {.p = 0.3,
                                                .key = 11,
                                                .step = 12,
                                                .first_row = 3,
                                                .first_head = 4,
                                                .heads = 7}};
  ExpectNear(Attention(x.q, x.k, x.v, options),
             SlowAttention(x.q, x.k, x.v, 0.5, false, 0, Tensor(),
                           Slice(Slice(kept, 0, 3, 5), 1, 4, 6)));
  EXPECT_TRUE(Gradcheck(
      [&](TensorSpan in) { return Attention(in[0], in[1], in[2], options); },
      {RandomInput({1, 2, 2, 2}, 1), RandomInput({1, 3, 2, 2}, 2),
       RandomInput({1, 3, 2, 2}, 3)}));
}

TEST(AttentionTest, StaysWithinDocuments) {
  const DocumentLengths lengths = {{3, 0, 4}, {1, 5}};
  Tensor q = Input({2, 8, 2, 2}, 1).set_requires_grad(true);
  Tensor k = Input({2, 8, 1, 2}, 2).set_requires_grad(true);
  Tensor v = Input({2, 8, 1, 2}, 3).set_requires_grad(true);
  const Tensor grad = Input({2, 8, 2, 2}, 4);
  for (bool causal : {false, true}) {
    const Tensor out = Attention(
        q, k, v, {.causal = causal, .key_ranges = DocumentKeys(lengths, 8)});
    for (const Tensor& x : {q, k, v}) x.set_grad(Tensor());
    ASSERT_TRUE(Backward(Sum(Mul(out, grad))).ok());
    for (int64_t row = 0; row < 2; ++row) {
      int64_t begin = 0;
      const auto of = [&](const Tensor& x, int64_t end) {
        return Slice(Slice(x.Detach(), 0, row, row + 1), 1, begin, end);
      };
      for (const int64_t length : lengths[static_cast<size_t>(row)]) {
        const int64_t end = begin + length;
        Tensor own_q = of(q, end).set_requires_grad(true);
        Tensor own_k = of(k, end).set_requires_grad(true);
        Tensor own_v = of(v, end).set_requires_grad(true);
        const Tensor own = Attention(own_q, own_k, own_v, {.causal = causal});
        ASSERT_TRUE(Backward(Sum(Mul(own, of(grad, end)))).ok());
        ExpectNear(of(out, end), own.Detach());
        ExpectNear(of(q.grad(), end), own_q.grad());
        ExpectNear(of(k.grad(), end), own_k.grad());
        ExpectNear(of(v.grad(), end), own_v.grad());
        begin = end;
      }
      for (const Tensor& x : {out, q.grad(), k.grad(), v.grad()}) {
        EXPECT_THAT(of(x, 8).ToVector<double>(),
                    ::testing::Each(::testing::Eq(0)));
      }
    }
  }
}

TEST(AttentionTest, RefusesOptionsThatDoNotFit) {
  const Small x;
  const auto run = [&](const AttentionOptions& options) {
    Attention(x.q, x.k, x.v, options);
  };
  EXPECT_DEATH(run({.mask = Ones({5})}),
               "options.mask f32\\[5\\].*broadcasts to \\[2, 2, 3, 4\\]");
  EXPECT_DEATH(run({.mask = Zeros({4}, kInt32)}), "options.mask i32");
  EXPECT_DEATH(run({.mask = Ones({1, 2, 2, 3, 4})}), "options.mask");
  EXPECT_DEATH(
      run({.slopes = Ones({2}).set_requires_grad(true)}),
      "options.slopes f32\\[2\\] on .* requires a gradient, which attention "
      "does not compute");
  EXPECT_DEATH(run({.slopes = Ones({1})}),
               "options.slopes f32\\[1\\] on .* is not f32\\[2\\]");
  EXPECT_DEATH(
      run({.key_ranges = Zeros({2, 4, 2}, kInt32)}),
      "options.key_ranges i32\\[2, 4, 2\\] on .* is not i32\\[2 or 1, 3, 2");
  EXPECT_DEATH(run({.dropout = {.p = 1.5}}), "dropout.p = 1.5");
  EXPECT_DEATH(run({.dropout = {.p = 0.5, .first_head = 1, .heads = 2}}),
               "heads from 1 on of 2");
}

// If all scores overflow to -inf, the result is that of a query without keys.
TEST(AttentionTest, GivesZerosIfAllScoresOverflow) {
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

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Eq;

// Two rows, three queries of two heads and one key head, four keys.
std::vector<TestInput> Small() {
  return {RandomInput({2, 3, 2, 2}, 1), RandomInput({2, 4, 1, 2}, 2),
          RandomInput({2, 4, 1, 2}, 3)};
}

bool HasGradient(const Shape& mask, AttentionOptions options) {
  std::vector<TestInput> inputs = Small();
  inputs.push_back(RandomInput(mask, 4));
  return Gradcheck(
      [&](TensorSpan in) {
        options.mask = in[3];
        return Attention(in[0], in[1], in[2], options);
      },
      inputs);
}

TEST(AttentionMaskGradTest, OtherKeyHeadsAreAnotherCall) {
  const auto key = [](const AttentionKeyHeads& key_heads) {
    OpKey key;
    AttentionMaskGradOp({}, key_heads).AppendKey(key);
    return key;
  };
  EXPECT_NE(key({}), key({.group = 2}));
  EXPECT_NE(key({.first_query = 2, .group = 2}), key({.group = 2}));
}

TEST(AttentionMaskGradTest, IsThatOfDifferences) {
  for (const Shape& sizes :
       {Shape{}, Shape{4}, Shape{3, 1}, Shape{3, 4}, Shape{2, 1, 4},
        Shape{2, 1, 1, 4}, Shape{1, 2, 3, 4}, Shape{2, 2, 3, 4}}) {
    EXPECT_TRUE(HasGradient(sizes, {.scale = 0.5})) << ToString(sizes);
  }
}

TEST(AttentionMaskGradTest, HoldsWithAllOtherOptions) {
  EXPECT_TRUE(HasGradient({2, 3, 4}, {.causal = true}));
  EXPECT_TRUE(HasGradient({2, 3, 4}, {.causal = true, .window = 2}));
  EXPECT_TRUE(HasGradient({2, 3, 4}, {.window = 1}));
  // A query without keys, and different keys per row.
  const Tensor ranges =
      FromValues<int32_t>({2, 3, 2}, {0, 1, 1, 3, 2, 2, 0, 4, 1, 4, 3, 4});
  EXPECT_TRUE(HasGradient({2, 1, 3, 4}, {.key_ranges = ranges}));
  EXPECT_TRUE(HasGradient({2, 3, 4},
                          {.slopes = FromValues<float>({2}, {0.5f, 0.25f})}));
  EXPECT_TRUE(HasGradient({2, 2, 3, 4}, {.dropout = {.p = 0.4,
                                                     .key = 11,
                                                     .step = 12,
                                                     .first_row = 3,
                                                     .first_head = 4,
                                                     .heads = 7}}));
  EXPECT_TRUE(HasGradient({3, 4}, {.dropout = {.p = 1}}));
}

TensorList SmallTensors(DType dtype = kFloat64) {
  TensorList tensors;
  for (const TestInput& input : Small()) {
    tensors.push_back(MakeInput(input, TestLayout::kContiguous, dtype));
  }
  return tensors;
}

Tensor GradientOf(const TensorList& qkv, Tensor mask,
                  const AttentionOptions& given = {}) {
  AttentionOptions options = given;
  options.mask = mask.set_requires_grad(true);
  const Tensor out = Attention(qkv[0], qkv[1], qkv[2], options);
  EXPECT_TRUE(Backward(Sum(Square(out))).ok());
  return mask.grad();
}

TEST(AttentionMaskGradTest, IsZeroWhereNothingIsSeen) {
  const double none = -std::numeric_limits<double>::infinity();
  const Tensor grad = GradientOf(
      SmallTensors(), FromValues<double>({3, 4}, {0, none, 1, 2,  //
                                                  none, none, none, none, none,
                                                  none, 3, none}));
  const std::vector<double> values = grad.ToVector<double>();
  EXPECT_EQ(values[1], 0);
  EXPECT_NE(values[0], 0);
  EXPECT_THAT(std::vector<double>(values.begin() + 4, values.end()),
              Each(Eq(0)));
  // Without queries, keys or rows.
  for (const Shape& sizes : {Shape{1, 0, 4}, Shape{1, 3, 0}, Shape{0, 3, 4}}) {
    const Tensor of_nothing =
        GradientOf({Zeros({sizes[0], sizes[1], 1, 2}, kFloat64),
                    Zeros({sizes[0], sizes[2], 1, 2}, kFloat64),
                    Zeros({sizes[0], sizes[2], 1, 2}, kFloat64)},
                   Zeros({1, 1}, kFloat64));
    EXPECT_THAT(of_nothing.ToVector<double>(), ElementsAre(0));
  }
}

TEST(AttentionMaskGradTest, IsNoNumberWhereScoresAreNone) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const TensorList qkv = SmallTensors();
  const Tensor mask = FromValues<double>({3, 4}, {0, 0, 0, 0,    //
                                                  0, nan, 0, 0,  //
                                                  0, 0, 0, 0})
                          .set_requires_grad(true);
  // The gradient of the output is 1 everywhere.
  const Tensor loss = Sum(Attention(qkv[0], qkv[1], qkv[2], {.mask = mask}));
  ASSERT_TRUE(Backward(loss).ok());
  const std::vector<double> values = mask.grad().ToVector<double>();
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(std::isnan(values[i]), i / 4 == 1) << i;
  }
}

TEST(AttentionMaskGradTest, ComputesInTheWiderDType) {
  const TensorList narrow = SmallTensors(kBFloat16);
  TensorList wide;
  for (const Tensor& t : narrow) wide.push_back(ToDType(t, kFloat32));
  const Tensor mask =
      MakeInput(RandomInput({3, 4}, 4), TestLayout::kContiguous, kBFloat16);
  const Tensor grad = GradientOf(narrow, mask.Detach());
  EXPECT_EQ(grad.dtype(), kBFloat16);
  const std::vector<float> expected =
      GradientOf(wide, ToDType(mask, kFloat32)).ToVector<float>();
  const std::vector<float> got = grad.ToVector<float>();
  // out and its gradient, of at most 2, are rounded to 8 bits. An element of
  // the result sums 4 products of these for 2 rows of 2 heads, and is rounded
  // itself.
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_NEAR(got[i], expected[i], 0x1p-8 * 2 * 4 * 4) << i;
  }
}

TEST(AttentionMaskGradTest, IsDifferentiableOnce) {
  const TensorList qkv = SmallTensors();
  const Tensor mask = Zeros({4}, kFloat64).set_requires_grad(true);
  const Tensor loss = Sum(Attention(qkv[0], qkv[1], qkv[2], {.mask = mask}));
  EXPECT_DEATH(Backward(loss, {.create_graph = true}).IgnoreError(),
               "attention is differentiable once");
}

using ::testing::ElementsAre;

Tensor Table(int64_t time, int64_t half, double (*fn)(double)) {
  std::vector<float> values;
  for (int64_t i = 0; i < time * half; ++i) {
    values.push_back(static_cast<float>(fn(0.3 * static_cast<double>(i))));
  }
  return FromValues<float>({time, half}, absl::MakeConstSpan(values));
}

TEST(RopeTest, RotatesHalves) {
  const Tensor x = FromValues<float>({1, 1, 1, 4}, {1, 2, 3, 4});
  const Tensor cos = FromValues<float>({1, 2}, {0, 2});
  const Tensor sin = FromValues<float>({1, 2}, {1, 3});
  EXPECT_THAT(ApplyRope(x, cos, sin).ToVector<float>(),
              ElementsAre(-3, 4 - 12, 1, 8 + 6));
}

TEST(RopeTest, RowsMayHaveTheirOwnPositions) {
  const Tensor cos = Table(4, 2, std::cos);
  const Tensor sin = Table(4, 2, std::sin);
  const Tensor x =
      MakeInput(RandomInput({2, 3, 1, 4}, 1), TestLayout::kContiguous);
  const Tensor positions = FromValues<int32_t>({2, 3}, {0, 1, 0, 3, 1, 1});
  const Tensor got =
      ApplyRope(x, Embedding(positions, cos), Embedding(positions, sin));
  for (int64_t row = 0; row < 2; ++row) {
    for (int64_t t = 0; t < 3; ++t) {
      const auto at = [&](const Tensor& all) {
        return Slice(Slice(all, 0, row, row + 1), 1, t, t + 1);
      };
      const auto position =
          positions.ToVector<int64_t>()[static_cast<size_t>(row * 3 + t)];
      EXPECT_EQ(at(got).ToVector<double>(),
                ApplyRope(at(x), Slice(cos, 0, position, position + 1),
                          Slice(sin, 0, position, position + 1))
                    .ToVector<double>());
    }
  }
  EXPECT_TRUE(Gradcheck(
      [&](TensorSpan in) {
        return ApplyRope(in[0], Embedding(positions, cos),
                         Embedding(positions, sin));
      },
      {RandomInput({2, 3, 1, 4}, 1)}));
}

TEST(RopeTest, HasGradientsOfEveryOrder) {
  const Tensor cos = Table(3, 2, std::cos);
  const Tensor sin = Table(3, 2, std::sin);
  const TensorFunction fn = [&](TensorSpan in) {
    return ApplyRope(in[0], cos, sin);
  };
  EXPECT_TRUE(Gradcheck(fn, {RandomInput({2, 3, 2, 4}, 1)}));
  EXPECT_TRUE(Gradcheck(fn, {RandomInput({0, 3, 2, 4}, 1)}));
  EXPECT_TRUE(GradGradcheck([&](TensorSpan in) { return Square(fn(in)); },
                            {RandomInput({1, 3, 1, 4}, 1)}));
}

TEST(RopeTest, RefusesWhatDoesNotFit) {
  EXPECT_DEATH(ApplyRope(Ones({1, 2, 1, 4}), Ones({2, 4}), Ones({2, 4})),
               "rope of x f32\\[1, 2, 1, 4\\].*cos f32\\[2, 4\\]");
  EXPECT_DEATH(ApplyRope(Ones({2, 4}), Ones({2, 2}), Ones({2, 2})),
               "rope of f32\\[2, 4\\]");
  const Tensor cos = Ones({2, 2}).set_requires_grad(true);
  EXPECT_DEATH(ApplyRope(Ones({1, 2, 1, 4}), cos, cos), "no gradient by cos");
}

using ::testing::ElementsAre;

TEST(DocumentsTest, TokensSeeTheirOwnDocument) {
  const Tensor keys = DocumentKeys({{2, 0, 1}, {}, {3}}, 4);
  EXPECT_EQ(keys.sizes(), Shape({3, 4, 2}));
  EXPECT_THAT(keys.ToVector<int32_t>(), ElementsAre(0, 2, 0, 2, 2, 3, 0, 0,  //
                                                    0, 0, 0, 0, 0, 0, 0, 0,  //
                                                    0, 3, 0, 3, 0, 3, 0, 0));
  EXPECT_EQ(DocumentKeys({}, 4).sizes(), Shape({0, 4, 2}));
}

TEST(DocumentsTest, KeysMayBePackedOtherwise) {
  EXPECT_THAT(DocumentKeys({{1, 2}}, {{5, 0}}, 3).ToVector<int32_t>(),
              ElementsAre(0, 5, 5, 5, 5, 5));
}

TEST(DocumentsTest, PositionsRestart) {
  EXPECT_THAT(DocumentPositions({{2, 0, 3}, {4}}, 6).ToVector<int32_t>(),
              ElementsAre(0, 1, 0, 1, 2, 0, 0, 1, 2, 3, 0, 0));
}

TEST(DocumentsTest, RefusesWhatDoesNotFit) {
  EXPECT_DEATH(DocumentKeys({{1}, {2, 2}}, 3),
               "row 1: document 1 of 2 tokens, where 1 are left of a row of 3");
  EXPECT_DEATH(DocumentPositions({{-1}}, 3), "document 0 of -1 tokens");
  EXPECT_DEATH(DocumentKeys({{1}}, {{1, 2}}, 3), "documents of queries");
  EXPECT_DEATH(DocumentKeys({{1}}, -1), "DocumentKeys: rows of -1 tokens");
  EXPECT_DEATH(DocumentPositions({}, -1), "Positions: rows of -1 tokens");
}

}  // namespace
}  // namespace crosshatch
