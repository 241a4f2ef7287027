// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/ops/matmul.h"

#include <cmath>
#include <limits>
#include <tuple>
#include <vector>

#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/gradcheck_testutil.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/tensor/ops/pointwise.h"
#include "crosshatch/tensor/ops/reduce.h"
#include "crosshatch/tensor/ops/view.h"
#include "crosshatch/tensor/rank_context.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

/// Computes the product by its definition, in row-major f64.
std::vector<double> SlowMatMul(const Tensor& a, const Tensor& b,
                               const MatMulSpec& spec) {
  const Tensor x = spec.transpose_a ? Transpose(a, -1, -2) : a;
  const Tensor y = spec.transpose_b ? Transpose(b, -1, -2) : b;
  const int64_t m = x.size(-2), k = x.size(-1), n = y.size(-1);
  const ShapeView xs = x.sizes(), ys = y.sizes();
  Shape batch = BroadcastShapes(xs.subspan(0, xs.size() - 2),
                                ys.subspan(0, ys.size() - 2), "test");
  const auto expand = [&](const Tensor& t) {
    Shape sizes = batch;
    sizes.push_back(t.size(-2));
    sizes.push_back(t.size(-1));
    return Expand(t, sizes).ToVector<double>();
  };
  const std::vector<double> xv = expand(x), yv = expand(y);
  const int64_t batches = NumElements(batch);
  std::vector<double> out(
      static_cast<size_t>((spec.sum_batch ? 1 : batches) * m * n), 0);
  for (int64_t b_ = 0; b_ < batches; ++b_) {
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        for (int64_t p = 0; p < k; ++p) {
          const int64_t o = ((spec.sum_batch ? 0 : b_) * m + i) * n + j;
          out[static_cast<size_t>(o)] +=
              xv[static_cast<size_t>((b_ * m + i) * k + p)] *
              yv[static_cast<size_t>((b_ * k + p) * n + j)];
        }
      }
    }
  }
  return out;
}

struct BatchCase {
  Shape a;
  Shape b;
};

Shape With(Shape batch, int64_t rows, int64_t cols) {
  batch.push_back(rows);
  batch.push_back(cols);
  return batch;
}

// Inputs are multiples of 1/997 in [-1, 1], with up to k = 15 terms.
constexpr double kTolerance = 1e-14;

void CheckProduct(const BatchCase& batch, const MatMulSpec& spec,
                  TestLayout layout, int64_t m, int64_t k, int64_t n) {
  const Tensor a = MakeInput(
      RandomInput(spec.transpose_a ? With(batch.a, k, m) : With(batch.a, m, k),
                  3),
      layout);
  const Tensor b = MakeInput(
      RandomInput(spec.transpose_b ? With(batch.b, n, k) : With(batch.b, k, n),
                  4),
      layout);
  const Tensor out = MatMul(a, b, spec);
  const std::vector<double> expected = SlowMatMul(a, b, spec);
  const std::vector<double> got = out.ToVector<double>();
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(got[i], expected[i], kTolerance)
        << a.Describe() << b.Describe() << spec.transpose_a << spec.transpose_b
        << spec.sum_batch << static_cast<int>(layout);
  }
  // Into existing memory, also strided.
  for (TestLayout dst_layout :
       {TestLayout::kContiguous, TestLayout::kReversed}) {
    TestInput old = {out.sizes(), std::vector<double>(got.size(), 1)};
    const Tensor dst = MakeInput(old, dst_layout);
    MatMulInto(dst, a, b, spec, /*accumulate=*/true);
    std::vector<double> sums = dst.ToVector<double>();
    for (size_t i = 0; i < sums.size(); ++i) {
      ASSERT_NEAR(sums[i], 1 + expected[i], kTolerance);
    }
    MatMulInto(dst, a, b, spec, /*accumulate=*/false);
    sums = dst.ToVector<double>();
    for (size_t i = 0; i < sums.size(); ++i) {
      ASSERT_NEAR(sums[i], expected[i], kTolerance);
    }
  }
}

TEST(MatMulTest, MatchesTheDefinition) {
  const std::vector<BatchCase> batches = {
      {{}, {}},         {{2}, {}},     {{}, {2}},        {{2}, {2}},
      {{2, 3}, {}},     {{2, 3}, {3}}, {{2, 1}, {1, 3}}, {{2, 3}, {2, 3}},
      {{1, 1}, {1, 1}}, {{0}, {}},     {{0}, {0}},
  };
  for (const BatchCase& batch : batches) {
    for (bool transpose_a : {false, true}) {
      for (bool transpose_b : {false, true}) {
        for (bool sum_batch : {false, true}) {
          if (sum_batch && batch.a != batch.b) continue;
          for (TestLayout layout :
               {TestLayout::kContiguous, TestLayout::kEveryOther,
                TestLayout::kReversed}) {
            const MatMulSpec spec = {transpose_a, transpose_b, sum_batch};
            CheckProduct(batch, spec, layout, 3, 5, 2);
            CheckProduct(batch, spec, layout, 1, 1, 1);
            CheckProduct(batch, spec, layout, 2, 0, 3);
            CheckProduct(batch, spec, layout, 0, 2, 3);
          }
        }
      }
    }
  }
}

TEST(MatMulTest, FoldsTheBatchOfALinearLayerWithoutCopies) {
  RankContext& context = RankContext::Current();
  const Tensor x = Ones({2, 3, 4}).set_requires_grad(true);
  const Tensor w = Ones({5, 4}).set_requires_grad(true);
  const int64_t before = context.copied_bytes();
  const Tensor y = Linear(x, w);
  ASSERT_TRUE(Backward(y, {.gradient = Ones({2, 3, 5})}).ok());
  EXPECT_THAT(w.grad().ToVector<float>(), Each(6));
  EXPECT_THAT(x.grad().ToVector<float>(), Each(5));
  EXPECT_EQ(context.copied_bytes(), before);
}

TEST(MatMulTest, HasGradients) {
  const std::vector<BatchCase> batches = {{{}, {}},   {{2}, {}},     {{}, {2}},
                                          {{2}, {2}}, {{2, 1}, {3}}, {{0}, {}}};
  for (const BatchCase& batch : batches) {
    for (bool transpose_a : {false, true}) {
      for (bool transpose_b : {false, true}) {
        for (bool sum_batch : {false, true}) {
          if (sum_batch && batch.a != batch.b) continue;
          const MatMulSpec spec = {transpose_a, transpose_b, sum_batch};
          const Shape a =
              transpose_a ? With(batch.a, 2, 3) : With(batch.a, 3, 2);
          const Shape b =
              transpose_b ? With(batch.b, 2, 2) : With(batch.b, 2, 2);
          EXPECT_TRUE(Gradcheck(
              [&](TensorSpan in) { return MatMul(in[0], in[1], spec); },
              {RandomInput(a, 1), RandomInput(b, 2)}))
              << ToString(a) << ToString(b) << transpose_a << transpose_b
              << sum_batch;
        }
      }
    }
  }
}

TEST(MatMulTest, HasSecondDerivatives) {
  EXPECT_TRUE(GradGradcheck(
      [](TensorSpan in) { return MatMul(in[0], in[1], false, true); },
      {RandomInput({2, 2, 3}, 1), RandomInput({2, 3}, 2)}));
}

TEST(MatMulTest, OfOneMatrixWithItself) {
  EXPECT_TRUE(
      Gradcheck([](TensorSpan in) { return MatMul(in[0], in[0], false, true); },
                {RandomInput({3, 2}, 1)}));
}

TEST(LinearTest, AddsTheBias) {
  const TensorFunction fn = [](TensorSpan in) {
    return Linear(in[0], in[1], in[2]);
  };
  EXPECT_TRUE(Gradcheck(fn, {RandomInput({2, 2, 3}, 1), RandomInput({4, 3}, 2),
                             RandomInput({4}, 3)}));
  EXPECT_THAT(
      Linear(Ones({1, 2}), Ones({2, 2}), Full({2}, 3)).ToVector<float>(),
      ElementsAre(5, 5));
}

TEST(MatMulTest, OfVectorsAndWithSummands) {
  const Tensor a = View(Arange(6), {2, 3});
  const Tensor v = Arange(3);
  EXPECT_THAT(Dot(v, v).ToVector<float>(), ElementsAre(5));
  EXPECT_EQ(Dot(v, v).ndim(), 0);
  EXPECT_THAT(Dot(Zeros({0}), Zeros({0})).ToVector<float>(), ElementsAre(0));
  EXPECT_THAT(MatVec(a, v).ToVector<float>(), ElementsAre(5, 14));
  EXPECT_EQ(MatVec(Expand(a, {4, 2, 3}), v).sizes(), Shape({4, 2}));
  const Tensor square = View(Arange(4), {2, 2});
  EXPECT_THAT(AddMM(Ones({2}), square, square, {.beta = 5, .alpha = 2})
                  .ToVector<float>(),
              ElementsAre(2 * 2 + 5, 2 * 3 + 5, 2 * 6 + 5, 2 * 11 + 5));
  const Tensor batch = View(Arange(8), {2, 2, 2});
  EXPECT_EQ(BAddBMM(Zeros({2, 2, 2}), batch, batch).ToVector<float>(),
            MatMul(batch, batch).ToVector<float>());
  EXPECT_DEATH(Dot(v, Arange(4)), "dot of f32\\[3\\].*f32\\[4\\]");
  EXPECT_DEATH(MatVec(a, Arange(2)), "matvec of f32\\[2, 3\\]");
  EXPECT_DEATH(AddMM(Ones({3, 2, 2}), square, square), "addmm of f32");
  EXPECT_DEATH(AddMM(Ones({5}), square, square), "addmm");
  EXPECT_TRUE(Gradcheck(
      [](TensorSpan in) {
        return Add(Dot(in[1], in[1]), AddMM(MatVec(in[0], in[1]), in[0], in[0],
                                            {.beta = 2, .alpha = 3}));
      },
      {RandomInput({2, 2}, 1), RandomInput({2}, 2)}));
}

TEST(MatMulTest, DoesNotReadASummandOfNoWeight) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const Tensor a = Ones({2, 3}, kFloat64);
  const Tensor b = Ones({3, 2}, kFloat64);
  const Tensor c = Full({2}, nan, kFloat64).set_requires_grad(true);
  const Tensor y = AddMM(c, a, b, {.beta = 0, .alpha = 2});
  EXPECT_THAT(y.ToVector<double>(), ::testing::Each(6));
  ASSERT_TRUE(Backward(Sum(y)).ok());
  EXPECT_THAT(c.grad().ToVector<double>(), ::testing::Each(0));
  EXPECT_THAT(BAddBMM(c, Unsqueeze(a, 0), Unsqueeze(b, 0), {.beta = 0})
                  .ToVector<double>(),
              ::testing::Each(3));
}

TEST(MatMulTest, NarrowsInputsIntoWideDestinations) {
  for (DType dtype : {kBFloat16, kFloat16}) {
    const Tensor a = Full({2, 3}, 2, dtype);
    const Tensor dst = Full({2, 2}, 0.5);
    MatMulInto(dst, a, Transpose(a, 0, 1), {}, /*accumulate=*/true);
    EXPECT_THAT(dst.ToVector<float>(), Each(12.5));
    EXPECT_EQ(MatMul(a, a, false, true).dtype(), dtype);
  }
}

TEST(MatMulTest, RefusesWhatDoesNotFit) {
  EXPECT_DEATH(MatMul(Ones({2, 3}), Ones({2, 3})),
               "matmul of \\[2, 3\\] and \\[2, 3\\]: 3 against 2");
  EXPECT_DEATH(MatMul(Ones({3}), Ones({3, 2})), "at least 2 dims");
  EXPECT_DEATH(MatMul(Ones({2, 2}), Ones({2, 2}, kFloat64)), "dtypes differ");
  EXPECT_DEATH(MatMul(Ones({2, 2, 2}), Ones({3, 2, 2})), "matmul");
  EXPECT_DEATH(MatMul(Ones({2, 2, 2}), Ones({2, 2}), {.sum_batch = true}),
               "batch dims to sum over differ");
  EXPECT_DEATH(MatMulInto(Ones({3, 3}), Ones({2, 2}), Ones({2, 2}), {}, false),
               "matmul_into: .*\\[3, 3\\]");
}

Tensor SmallNumbers(ShapeView sizes, int start) {
  std::vector<float> values;
  for (int64_t i = 0; i < NumElements(sizes); ++i) {
    values.push_back(static_cast<float>((start + 5 * i) % 7 - 3));
  }
  return FromValues<float>(sizes, values);
}

// Multiplies each group separately.
Tensor OneByOne(const Tensor& x, const Tensor& w, ShapeView offsets,
                bool transpose_w) {
  TensorList parts;
  for (int64_t g = 0; g < w.size(0); ++g) {
    const int64_t begin = offsets[static_cast<size_t>(g)];
    const int64_t end = offsets[static_cast<size_t>(g) + 1];
    parts.push_back(MatMul(Slice(x, 0, begin, end),
                           Squeeze(Slice(w, 0, g, g + 1), 0), false,
                           transpose_w));
  }
  return Cat(parts, 0);
}

TEST(GroupedMatMulTest, MultipliesEachGroupByItsMatrix) {
  const Tensor x = SmallNumbers({7, 3}, 1);
  // Groups of some, none, one and the remaining rows; of all rows; with empty
  // ones in front.
  for (const Shape& offsets :
       {Shape{0, 3, 3, 4, 7}, Shape{0, 7, 7, 7, 7}, Shape{0, 0, 0, 0, 7}}) {
    const Tensor w = SmallNumbers({4, 3, 5}, 2);
    EXPECT_EQ(GroupedMatMul(x, w, offsets).ToVector<float>(),
              OneByOne(x, w, offsets, false).ToVector<float>());
    const Tensor turned = SmallNumbers({4, 5, 3}, 2);
    EXPECT_EQ(GroupedMatMul(x, turned, offsets, true).ToVector<float>(),
              OneByOne(x, turned, offsets, true).ToVector<float>());
  }
}

TEST(GroupedMatMulTest, TakesStridesAsTheyAre) {
  const Tensor x = Transpose(SmallNumbers({3, 7}, 1), 0, 1);
  const Tensor w = Transpose(SmallNumbers({5, 3, 2}, 2), 0, 2);
  const Shape offsets = {0, 2, 7};
  EXPECT_EQ(GroupedMatMul(x, w, offsets).ToVector<float>(),
            OneByOne(x, w, offsets, false).ToVector<float>());
}

TEST(GroupedMatMulTest, OfNoRowsAndOfNoGroups) {
  EXPECT_EQ(GroupedMatMul(Ones({0, 3}), Ones({2, 3, 4}), {0, 0, 0}).sizes(),
            Shape({0, 4}));
  EXPECT_EQ(GroupedMatMul(Ones({0, 3}), Ones({0, 3, 4}), {0}).sizes(),
            Shape({0, 4}));
  EXPECT_EQ(GroupedOuter(Ones({0, 3}), Ones({0, 4}), {0}).sizes(),
            Shape({0, 3, 4}));
}

TEST(GroupedOuterTest, SumsOverTheRowsOfEachGroup) {
  const Tensor a = SmallNumbers({5, 2}, 1);
  const Tensor b = SmallNumbers({5, 3}, 4);
  const Tensor sums = GroupedOuter(a, b, {0, 2, 2, 5});
  EXPECT_EQ(
      Squeeze(Slice(sums, 0, 0, 1), 0).ToVector<float>(),
      MatMul(Slice(a, 0, 0, 2), Slice(b, 0, 0, 2), true).ToVector<float>());
  EXPECT_EQ(Slice(sums, 0, 1, 2).ToVector<float>(), std::vector<float>(6, 0));
  EXPECT_EQ(
      Squeeze(Slice(sums, 0, 2, 3), 0).ToVector<float>(),
      MatMul(Slice(a, 0, 2, 5), Slice(b, 0, 2, 5), true).ToVector<float>());
}

TEST(GroupedMatMulTest, Gradients) {
  const std::vector<TestInput> operands = {RandomInput({5, 3}, 1),
                                           RandomInput({3, 3, 2}, 2)};
  const Shape offsets = {0, 2, 2, 5};
  const auto product = [&](TensorSpan in) {
    return GroupedMatMul(in[0], in[1], offsets);
  };
  EXPECT_TRUE(Gradcheck(product, operands));
  EXPECT_TRUE(GradGradcheck(product, operands));
  const std::vector<TestInput> turned = {RandomInput({5, 3}, 1),
                                         RandomInput({3, 2, 3}, 2)};
  EXPECT_TRUE(Gradcheck(
      [&](TensorSpan in) {
        return GroupedMatMul(in[0], in[1], offsets, /*transpose_w=*/true);
      },
      turned));
  const auto outer = [&](TensorSpan in) {
    return GroupedOuter(in[0], in[1], offsets);
  };
  const std::vector<TestInput> rows = {RandomInput({5, 3}, 3),
                                       RandomInput({5, 2}, 4)};
  EXPECT_TRUE(Gradcheck(outer, rows));
  EXPECT_TRUE(GradGradcheck(outer, rows));
}

TEST(GroupedMatMulDeathTest, NamesTheSizesThatDoNotMatch) {
  EXPECT_DEATH(GroupedMatMul(Ones({4, 3}), Ones({2, 5, 6}), {0, 2, 4}),
               "grouped_matmul of \\[4, 3\\] by \\[2, 5, 6\\]");
  EXPECT_DEATH(GroupedMatMul(Ones({4, 3}), Ones({2, 3, 6}), {0, 4}),
               "offsets, one more than groups");
  EXPECT_DEATH(GroupedMatMul(Ones({4, 3}), Ones({2, 3, 6}), {0, 2, 3}),
               "end with the number of rows, 4");
  EXPECT_DEATH(GroupedOuter(Ones({4, 3}), Ones({4, 2}), {0, 3, 2, 4}),
               "the offsets \\[0, 3, 2, 4\\] of groups fall");
}

}  // namespace
}  // namespace crosshatch
