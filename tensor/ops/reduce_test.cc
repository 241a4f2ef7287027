// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/ops/reduce.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/gradcheck_testutil.h"
#include "crosshatch/tensor/ops/cast.h"
#include "crosshatch/tensor/ops/pointwise.h"
#include "crosshatch/tensor/ops/view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

TEST(ReduceTest, ReducesAnyDims) {
  const Tensor a = View(Arange(6), {2, 3});
  EXPECT_THAT(Sum(a).ToVector<float>(), ElementsAre(15));
  EXPECT_EQ(Sum(a).sizes(), Shape({}));
  EXPECT_EQ(Sum(a, {}, true).sizes(), Shape({1, 1}));
  EXPECT_THAT(Sum(a, {0}).ToVector<float>(), ElementsAre(3, 5, 7));
  EXPECT_THAT(Sum(a, {-1}).ToVector<float>(), ElementsAre(3, 12));
  EXPECT_EQ(Sum(a, {-1}, true).sizes(), Shape({2, 1}));
  EXPECT_THAT(Sum(a, {1, 0}).ToVector<float>(), ElementsAre(15));
  EXPECT_THAT(Mean(a, {0}).ToVector<float>(), ElementsAre(1.5, 2.5, 3.5));
  EXPECT_THAT(Prod(Add(a, 1), {1}).ToVector<float>(), ElementsAre(6, 120));
  EXPECT_THAT(Max(a, {0}).ToVector<float>(), ElementsAre(3, 4, 5));
  EXPECT_THAT(Min(a, {1}).ToVector<float>(), ElementsAre(0, 3));
  EXPECT_THAT(SumOfSquares(a, {1}).ToVector<float>(), ElementsAre(5, 50));
  EXPECT_THAT(ArgMax(a, 1).ToVector<int64_t>(), ElementsAre(2, 2));
  EXPECT_EQ(ArgMin(a, 0, true).sizes(), Shape({1, 3}));
  EXPECT_THAT(Sum(Transpose(a, 0, 1), {0}).ToVector<float>(),
              ElementsAre(3, 12));
  EXPECT_THAT(Sum(Zeros({0, 2}), {0}).ToVector<float>(), ElementsAre(0, 0));
  EXPECT_THAT(Sum(Full({}, 3)).ToVector<float>(), ElementsAre(3));
}

TEST(ReduceTest, GivesTheDocumentedDTypes) {
  EXPECT_EQ(Sum(Ones({2}, kBFloat16)).dtype(), kBFloat16);
  EXPECT_EQ(Sum(Ones({2}, kInt32)).dtype(), kInt64);
  EXPECT_THAT(Sum(Ones({3}, kBool)).ToVector<int64_t>(), ElementsAre(3));
  EXPECT_EQ(Max(Ones({2}, kInt32)).dtype(), kInt32);
  EXPECT_EQ(ArgMax(Ones({2}), 0).dtype(), kInt64);
}

TEST(ReduceTest, RefusesWhatDoesNotFit) {
  const Tensor a = Zeros({2, 3});
  EXPECT_DEATH(Sum(a, {2}), "sum");
  EXPECT_DEATH(Sum(a, {0, -2}), "sum of f32\\[2, 3\\].*a dim twice");
  EXPECT_DEATH(Mean(Ones({2}, kInt32)), "mean of i32\\[2\\]");
  EXPECT_DEATH(ArgMax(Zeros({0}), 0), "argmax of f32\\[0\\].*no elements");
  EXPECT_DEATH(SumTo(a, {3, 3}), "sum of f32\\[2, 3\\].*to \\[3, 3\\]");
}

struct Case {
  const char* name;
  Tensor (*fn)(const Tensor&, ShapeView, bool);
};

class ReductionGradientTest : public ::testing::TestWithParam<Case> {};

TEST_P(ReductionGradientTest, MatchesDifferences) {
  const Case& c = GetParam();
  for (const Shape& dims : {Shape{}, Shape{0}, Shape{1}, Shape{0, 2}}) {
    for (bool keepdim : {false, true}) {
      const TensorFunction fn = [&](TensorSpan in) {
        return c.fn(in[0], dims, keepdim);
      };
      EXPECT_TRUE(Gradcheck(fn, {RandomInput({2, 3, 2}, 3)}));
      EXPECT_TRUE(Gradcheck(fn, {RandomInput({1, 1, 1}, 3)}));
    }
  }
  EXPECT_TRUE(
      GradGradcheck([&c](TensorSpan in) { return Square(c.fn(in[0], {1}, 0)); },
                    {RandomInput({2, 3}, 4)}));
  EXPECT_TRUE(Gradcheck([&c](TensorSpan in) { return c.fn(in[0], {}, false); },
                        {RandomInput({}, 4)}));
}

INSTANTIATE_TEST_SUITE_P(All, ReductionGradientTest,
                         ::testing::Values(Case{"Sum", Sum}, Case{"Mean", Mean},
                                           Case{"Prod", Prod}, Case{"Max", Max},
                                           Case{"Min", Min},
                                           Case{"SumOfSquares", SumOfSquares}),
                         [](const auto& info) {
                           return std::string(info.param.name);
                         });

TEST(ReductionGradientTest, OfNoElements) {
  for (auto* fn : {Sum, Mean, Prod, SumOfSquares}) {
    const Tensor x = Zeros({0, 2}, kFloat64).set_requires_grad(true);
    ASSERT_TRUE(Backward(Sum(fn(x, {0}, false))).ok());
    EXPECT_EQ(x.grad().sizes(), x.sizes());
  }
}

TEST(ReductionGradientTest, OfAProductWithZeros) {
  const TestInput one_zero = {{2, 3}, {0, 2, 3, 4, 5, 6}};
  const TestInput two_zeros = {{2, 3}, {0, 2, 0, 4, 0, 6}};
  const TensorFunction fn = [](TensorSpan in) { return Prod(in[0], {1}); };
  EXPECT_TRUE(Gradcheck(fn, {one_zero}));
  EXPECT_TRUE(Gradcheck(fn, {two_zeros}));
}

TEST(ReductionGradientTest, EqualLargestElementsShare) {
  const Tensor x =
      FromValues<double>({4}, {1, 3, 3, 2}).set_requires_grad(true);
  ASSERT_TRUE(Backward(Max(x)).ok());
  EXPECT_THAT(x.grad().ToVector<double>(), ElementsAre(0, 0.5, 0.5, 0));
}

TEST(ReductionGradientTest, OfMoreEqualsThan16BitsCount) {
  constexpr int64_t kCount = 70'000;
  for (DType dtype : {kFloat16, kBFloat16}) {
    for (auto* fn : {Max, Min}) {
      const Tensor x = Ones({kCount}, dtype).set_requires_grad(true);
      // The share of one element is 0.5, which fits 16 bits.
      ASSERT_TRUE(Backward(Mul(fn(x, {}, false), 35'000.0)).ok());
      EXPECT_THAT(x.grad().ToVector<float>(), Each(0.5f)) << dtype;
    }
  }
}

TEST(SumToTest, UndoesBroadcasting) {
  const Tensor a = Ones({4, 2, 3});
  for (const Shape& sizes : {Shape{2, 3}, Shape{3}, Shape{}, Shape{2, 1},
                             Shape{1, 2, 3}, Shape{4, 1, 1}}) {
    const Tensor sum = SumTo(a, sizes);
    EXPECT_EQ(sum.sizes(), sizes);
    EXPECT_EQ(sum.ToVector<float>()[0], 24 / static_cast<float>(sum.numel()));
  }
  EXPECT_TRUE(SumTo(a, a.sizes()).SameAs(a));
}

using ::testing::Each;
using ::testing::ElementsAre;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNorms[] = {0, 0.5, 1, 2, 3, 2.5, kInf, -kInf, -1, -2.5};

using Terms = std::vector<double>;
using Reference = std::function<double(const Terms&)>;

// Applies `reference` to the elements of each group that `dims` reduce.
Terms ReduceSlowly(const Tensor& a, const std::vector<bool>& reduced,
                   const Reference& reference) {
  const Terms values = ToDType(a, kFloat64).ToVector<double>();
  const Shape strides = ContiguousStrides(a.sizes());
  size_t groups = 1;
  for (int d = 0; d < a.ndim(); ++d) groups *= reduced[d] ? 1 : a.size(d);
  std::vector<Terms> terms(groups);
  for (size_t i = 0; i < values.size(); ++i) {
    size_t group = 0;
    for (int d = 0; d < a.ndim(); ++d) {
      if (reduced[d]) continue;
      const int64_t at = static_cast<int64_t>(i) / strides[d] % a.size(d);
      group = group * a.size(d) + at;
    }
    terms[group].push_back(values[i]);
  }
  Terms results;
  for (const Terms& group : terms) results.push_back(reference(group));
  return results;
}

double SlowNorm(const Terms& terms, double p) {
  double result = p == -kInf ? kInf : 0;
  for (double x : terms) {
    if (p == kInf) {
      result = std::max(result, std::abs(x));
    } else if (p == -kInf) {
      result = std::min(result, std::abs(x));
    } else {
      result += p == 0 ? x != 0 : std::pow(std::abs(x), p);
    }
  }
  return p == 0 || std::isinf(p) ? result : std::pow(result, 1 / p);
}

double SlowVar(const Terms& terms, double correction) {
  double mean = 0, sum = 0;
  for (double x : terms) mean += x / static_cast<double>(terms.size());
  for (double x : terms) sum += (x - mean) * (x - mean);
  return sum / std::max(static_cast<double>(terms.size()) - correction, 0.0);
}

double SlowLogSumExp(const Terms& terms) {
  double sum = 0;
  for (double x : terms) sum += std::exp(x);
  return std::log(sum);
}

// Compares `fn` on all dims of several shapes, strided ones too.
void ExpectMatches(
    const char* what,
    const std::function<Tensor(const Tensor&, const Shape&, bool)>& fn,
    const Reference& reference, bool of_none = true) {
  for (const Shape& sizes : {Shape{}, Shape{5}, Shape{1, 1}, Shape{3, 7},
                             Shape{2, 3, 4}, Shape{3, 0}}) {
    const int ndim = static_cast<int>(sizes.size());
    for (TestLayout layout : {TestLayout::kContiguous, TestLayout::kReversed}) {
      const Tensor a = MakeInput(RandomInput(sizes, 5), layout);
      for (unsigned mask = ndim > 0 ? 1 : 0; mask < 1u << ndim; ++mask) {
        Shape dims, kept = sizes, dropped;
        std::vector<bool> reduced(ndim);
        int64_t count = 1;
        for (int d = 0; d < ndim; ++d) {
          reduced[d] = (mask >> d & 1) != 0;
          if (!reduced[d]) {
            dropped.push_back(sizes[d]);
            continue;
          }
          dims.insert(dims.begin(), d - (d % 2 == 0 ? ndim : 0));
          kept[d] = 1;
          count *= sizes[d];
        }
        if (count == 0 && !of_none) continue;
        const Terms expected = ReduceSlowly(a, reduced, reference);
        const Tensor flat = fn(a, dims, false);
        ASSERT_EQ(flat.sizes(), dropped) << what << ToString(sizes);
        EXPECT_EQ(fn(a, dims, true).sizes(), kept) << what << ToString(sizes);
        const Terms actual = flat.ToVector<double>();
        for (size_t i = 0; i < expected.size(); ++i) {
          if (std::isnan(expected[i])) {
            EXPECT_TRUE(std::isnan(actual[i])) << what << ToString(sizes);
          } else if (actual[i] != expected[i]) {
            // Sums of 24 terms of at most about 1, and two roots.
            EXPECT_NEAR(actual[i], expected[i],
                        1e-13 * std::max(1.0, std::abs(expected[i])))
                << what << ToString(sizes) << " over " << ToString(dims);
          }
        }
      }
    }
  }
}

Tensor Values(const std::vector<double>& values, DType dtype = kFloat64) {
  return ToDType(
      FromValues<double>({static_cast<int64_t>(values.size())}, values), dtype);
}

Terms GradientOf(const std::function<Tensor(const Tensor&)>& fn,
                 const std::vector<double>& at) {
  const Tensor x = Values(at).set_requires_grad(true);
  EXPECT_TRUE(Backward(fn(x)).ok());
  return x.grad().ToVector<double>();
}

TEST(NormTest, MatchesTheDefinition) {
  for (double p : kNorms) {
    ExpectMatches(
        "norm",
        [p](const Tensor& a, const Shape& dims, bool keepdim) {
          return Norm(a, p, dims, keepdim);
        },
        [p](const Terms& terms) { return SlowNorm(terms, p); },
        /*of_none=*/p >= 0 && p < kInf);
  }
}

TEST(NormTest, HasGradients) {
  for (double p : kNorms) {
    const TensorFunction fn = [p](TensorSpan in) { return Norm(in[0], p); };
    EXPECT_TRUE(Gradcheck(fn, {RandomInput({5}, 3, 0.2, 2)})) << p;
    EXPECT_TRUE(
        Gradcheck([p](TensorSpan in) { return Norm(in[0], p, {1}, true); },
                  {RandomInput({2, 3}, 3, -2, -0.2)}))
        << p;
    if (p == 2 || p == 3) {
      EXPECT_TRUE(GradGradcheck(fn, {RandomInput({4}, 3, 0.2, 2)})) << p;
    }
  }
}

TEST(NormTest, HasZeroGradientWhereItHasNoDerivative) {
  for (double p : kNorms) {
    const auto norm = [p](const Tensor& x) { return Norm(x, p); };
    EXPECT_THAT(GradientOf(norm, {0, 0, 0}), Each(0)) << p;
  }
  const auto half = [](const Tensor& x) { return Norm(x, 0.5); };
  const Terms gradient = GradientOf(half, {0, 4, 1});
  EXPECT_EQ(gradient[0], 0);
  EXPECT_NEAR(gradient[1], 1.5, 1e-14);
  EXPECT_NEAR(gradient[2], 3, 1e-14);
  EXPECT_THAT(
      GradientOf([](const Tensor& x) { return Norm(x, kInf); }, {3, 1, -3}),
      ElementsAre(0.5, 0, -0.5));
}

TEST(NormTest, OfShortFloatsIsComputedInFloat32) {
  // The squares exceed f16.
  const Tensor a = Values({300, 400}, kFloat16);
  EXPECT_THAT(Norm(a).ToVector<float>(), ElementsAre(500));
  EXPECT_EQ(Norm(a).dtype(), kFloat16);
  EXPECT_THAT(Norm(Values({30, 40}, kFloat16), 4, {}, true).ToVector<float>(),
              ElementsAre(testing::FloatNear(42.84f, 0.02f)));
}

TEST(NormTest, KeepsNaNAndInfinity) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (double p : {0.5, 1.0, 2.0, 3.0, kInf, -kInf, -1.0}) {
    EXPECT_TRUE(std::isnan(Norm(Values({1, nan}), p).ToVector<double>()[0]))
        << p;
  }
  EXPECT_THAT(Norm(Values({0, nan, 2}), 0).ToVector<double>(), ElementsAre(2));
  EXPECT_THAT(Norm(Values({1, -kInf})).ToVector<double>(), ElementsAre(kInf));
  EXPECT_THAT(Norm(Values({0, 3}), -1).ToVector<double>(), ElementsAre(0));
}

TEST(NormTest, RefusesWhatHasNone) {
  EXPECT_DEATH(Norm(Ones({2}, kInt32)), "norm of i32\\[2\\]");
  EXPECT_DEATH(Norm(Zeros({0}), kInf), "norm of f32\\[0\\].*no elements");
  EXPECT_DEATH(Norm(Zeros({0}), -1), "norm of f32\\[0\\].*no elements");
  EXPECT_EQ(Norm(Zeros({0, 3}), kInf, {1}).numel(), 0);
}

TEST(VarTest, MatchesTheDefinition) {
  for (double correction : {0.0, 1.0, 2.0, 0.5}) {
    ExpectMatches(
        "var",
        [=](const Tensor& a, const Shape& dims, bool keepdim) {
          return Var(a, dims, keepdim, correction);
        },
        [=](const Terms& terms) { return SlowVar(terms, correction); });
    ExpectMatches(
        "std",
        [=](const Tensor& a, const Shape& dims, bool keepdim) {
          return Std(a, dims, keepdim, correction);
        },
        [=](const Terms& terms) {
          return std::sqrt(SlowVar(terms, correction));
        });
  }
}

TEST(VarTest, LosesNothingToALargeMean) {
  const Tensor a = Values({1e6, 1e6 + 1, 1e6 + 2}, kFloat32);
  EXPECT_THAT(Var(a).ToVector<float>(), ElementsAre(1));
  EXPECT_THAT(Std(a, {}, false, 0).ToVector<float>(),
              ElementsAre(testing::FloatEq(std::sqrt(2.0f / 3))));
  // In bf16 the mean would be rounded to 256.
  const Tensor b = Values({256, 258}, kBFloat16);
  EXPECT_THAT(Var(b).ToVector<float>(), ElementsAre(2));
  EXPECT_EQ(Std(b).dtype(), kBFloat16);
}

TEST(VarTest, HasGradients) {
  for (const Shape& dims : {Shape{}, Shape{0}, Shape{0, 2}}) {
    EXPECT_TRUE(
        Gradcheck([&](TensorSpan in) { return Var(in[0], dims, false, 0); },
                  {RandomInput({2, 3, 2}, 4)}));
    EXPECT_TRUE(Gradcheck([&](TensorSpan in) { return Std(in[0], dims, true); },
                          {RandomInput({2, 3, 2}, 4)}));
  }
  const TensorFunction var = [](TensorSpan in) { return Var(in[0], {1}); };
  const TensorFunction std = [](TensorSpan in) { return Std(in[0], {1}); };
  EXPECT_TRUE(GradGradcheck(var, {RandomInput({2, 3}, 4)}));
  EXPECT_TRUE(GradGradcheck(std, {RandomInput({2, 3}, 4)}));
  EXPECT_THAT(GradientOf([](const Tensor& x) { return Std(x); }, {3, 3, 3}),
              Each(0));
}

TEST(LogSumExpTest, MatchesTheDefinition) {
  ExpectMatches(
      "logsumexp",
      [](const Tensor& a, const Shape& dims, bool keepdim) {
        return LogSumExp(a, dims, keepdim);
      },
      SlowLogSumExp);
}

TEST(LogSumExpTest, NeitherOverflowsNorUnderflows) {
  EXPECT_THAT(LogSumExp(Values({1000, 1000}, kFloat32)).ToVector<float>(),
              ElementsAre(testing::FloatEq(1000 + std::log(2.0f))));
  EXPECT_THAT(LogSumExp(Values({-1000, -1000}, kFloat32)).ToVector<float>(),
              ElementsAre(testing::FloatEq(-1000 + std::log(2.0f))));
  EXPECT_THAT(LogSumExp(Values({-kInf, -kInf})).ToVector<double>(),
              ElementsAre(-kInf));
  EXPECT_THAT(LogSumExp(Values({-kInf, 3})).ToVector<double>(), ElementsAre(3));
  EXPECT_THAT(LogSumExp(Values({kInf, 3})).ToVector<double>(),
              ElementsAre(kInf));
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(std::isnan(LogSumExp(Values({nan, kInf})).ToVector<double>()[0]));
}

TEST(LogSumExpTest, HasGradients) {
  const TensorFunction fn = [](TensorSpan in) {
    return LogSumExp(in[0], {0, 2}, true);
  };
  EXPECT_TRUE(Gradcheck(fn, {RandomInput({2, 3, 2}, 4, -3, 3)}));
  EXPECT_TRUE(GradGradcheck([](TensorSpan in) { return LogSumExp(in[0], {1}); },
                            {RandomInput({2, 3}, 4)}));
  EXPECT_THAT(
      GradientOf([](const Tensor& x) { return LogSumExp(x); }, {1e4, 1e4}),
      Each(0.5));
}

TEST(AnyTest, IsTrueForElementsOtherThanZero) {
  const Tensor a = FromValues<float>({3, 2}, {0, 0, 0, -2, 1, 2});
  EXPECT_EQ(Any(a).dtype(), kBool);
  const auto values = [](const Tensor& t) {
    return ToDType(t, kInt32).ToVector<int32_t>();
  };
  EXPECT_THAT(values(Any(a, {1})), ElementsAre(0, 1, 1));
  EXPECT_THAT(values(All(a, {1})), ElementsAre(0, 0, 1));
  EXPECT_THAT(values(Any(a)), ElementsAre(1));
  EXPECT_THAT(values(All(a)), ElementsAre(0));
  EXPECT_EQ(All(a, {0}, true).sizes(), Shape({1, 2}));
  EXPECT_THAT(values(Any(Zeros({0, 2}, kInt64), {0})), ElementsAre(0, 0));
  EXPECT_THAT(values(All(Zeros({0, 2}, kBool), {0})), ElementsAre(1, 1));
  EXPECT_THAT(
      values(All(Values({1, std::numeric_limits<double>::quiet_NaN()}))),
      ElementsAre(1));
}

}  // namespace
}  // namespace crosshatch
