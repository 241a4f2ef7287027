// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/ops/pointwise.h"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/gradcheck_testutil.h"
#include "crosshatch/tensor/ops/reduce.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using ::testing::ElementsAre;

Tensor Values(ShapeView sizes, std::vector<float> values) {
  return FromValues<float>(sizes, absl::MakeConstSpan(values));
}

TEST(PointwiseTest, Broadcasts) {
  const Tensor column = Values({2, 1}, {10, 20});
  const Tensor row = Values({3}, {1, 2, 3});
  const Tensor sum = Add(column, row, 2);
  EXPECT_EQ(sum.sizes(), Shape({2, 3}));
  EXPECT_THAT(sum.ToVector<float>(), ElementsAre(12, 14, 16, 22, 24, 26));
  EXPECT_THAT(Sub(row, column, 0.5).ToVector<float>(),
              ElementsAre(-4, -3, -2, -9, -8, -7));
  EXPECT_EQ(Mul(Zeros({0, 1}), row).sizes(), Shape({0, 3}));
  EXPECT_THAT(Mul(Full({}, 2), row).ToVector<float>(), ElementsAre(2, 4, 6));
}

TEST(PointwiseTest, TakesScalars) {
  const Tensor a = Values({3}, {1, 2, 4});
  EXPECT_THAT(Add(a, 1).ToVector<float>(), ElementsAre(2, 3, 5));
  EXPECT_THAT(Sub(a, 1).ToVector<float>(), ElementsAre(0, 1, 3));
  EXPECT_THAT(Sub(1, a).ToVector<float>(), ElementsAre(0, -1, -3));
  EXPECT_THAT(Mul(a, 3.0).ToVector<float>(), ElementsAre(3, 6, 12));
  EXPECT_THAT(Div(a, 2.0).ToVector<float>(), ElementsAre(0.5, 1, 2));
  EXPECT_THAT(Div(4.0, a).ToVector<float>(), ElementsAre(4, 2, 1));
  EXPECT_THAT(Pow(a, 2.0).ToVector<float>(), ElementsAre(1, 4, 16));
  EXPECT_THAT(Maximum(a, 2.0).ToVector<float>(), ElementsAre(2, 2, 4));
  EXPECT_THAT(Minimum(a, 2.0).ToVector<float>(), ElementsAre(1, 2, 2));
}

TEST(PointwiseTest, ComparesAndSelects) {
  const Tensor a = Values({3}, {1, 2, 3});
  const Tensor b = Values({3}, {3, 2, 1});
  const auto bits = [](const Tensor& t) { return t.ToVector<int32_t>(); };
  EXPECT_THAT(bits(Equal(a, b)), ElementsAre(0, 1, 0));
  EXPECT_THAT(bits(NotEqual(a, b)), ElementsAre(1, 0, 1));
  EXPECT_THAT(bits(Less(a, b)), ElementsAre(1, 0, 0));
  EXPECT_THAT(bits(LessEqual(a, b)), ElementsAre(1, 1, 0));
  EXPECT_THAT(bits(Greater(a, b)), ElementsAre(0, 0, 1));
  EXPECT_THAT(bits(GreaterEqual(a, b)), ElementsAre(0, 1, 1));
  EXPECT_THAT(bits(LogicalAnd(Less(a, b), LessEqual(a, b))),
              ElementsAre(1, 0, 0));
  EXPECT_THAT(bits(LogicalOr(Less(a, b), LogicalNot(Equal(a, b)))),
              ElementsAre(1, 0, 1));
  EXPECT_THAT(Where(Less(a, b), a, Full({}, 7)).ToVector<float>(),
              ElementsAre(1, 7, 7));
  EXPECT_EQ(Less(a, b).dtype(), kBool);
}

TEST(PointwiseTest, KeepsDTypes) {
  for (DType dtype : {kFloat32, kFloat64, kBFloat16, kFloat16}) {
    const Tensor a = Full({2}, 3, dtype);
    EXPECT_EQ(Silu(a).dtype(), dtype);
    EXPECT_THAT(Square(a).ToVector<float>(), ElementsAre(9, 9));
    EXPECT_THAT(Add(a, a).ToVector<float>(), ElementsAre(6, 6));
    EXPECT_THAT(OnesLike(a).ToVector<float>(), ElementsAre(1, 1));
  }
  const Tensor i = Arange(3, kInt64);
  EXPECT_THAT(Mul(i, i).ToVector<int64_t>(), ElementsAre(0, 1, 4));
  EXPECT_THAT(Add(i, 5).ToVector<int64_t>(), ElementsAre(5, 6, 7));
}

TEST(PointwiseTest, RefusesWhatDoesNotFit) {
  EXPECT_DEATH(Add(Ones({2}), Ones({3})), "add.*\\[2\\].*\\[3\\]");
  EXPECT_DEATH(Mul(Ones({2}), Ones({2}, kFloat64)),
               "mul of f32\\[2\\].*f64\\[2\\].*dtypes differ");
  EXPECT_DEATH(Exp(Ones({2}, kInt32)), "exp of i32\\[2\\]");
  EXPECT_DEATH(Add(Ones({2}, kBool), Ones({2}, kBool)), "add of bool");
  EXPECT_DEATH(LogicalAnd(Ones({2}), Ones({2})), "logical_and of f32");
  EXPECT_DEATH(Where(Ones({2}), Ones({2}), Ones({2})), "where with");
  EXPECT_DEATH(SwiGlu(Ones({2}), Ones({3})), "swiglu of f32\\[2\\]");
  EXPECT_DEATH(Add(Ones({1, 1, 1, 1, 1, 1, 1, 1, 1}), 1), "more than 8 dims");
}

struct UnaryCase {
  const char* name;
  Tensor (*fn)(const Tensor&);
  double low = -2;
  double high = 2;
};

class UnaryGradientTest : public ::testing::TestWithParam<UnaryCase> {};

TEST_P(UnaryGradientTest, MatchesDifferences) {
  const UnaryCase& c = GetParam();
  const TensorFunction fn = [&c](TensorSpan in) { return c.fn(in[0]); };
  for (const Shape& sizes : {Shape{}, Shape{0}, Shape{1, 1}, Shape{2, 3}}) {
    const TestInput input = RandomInput(sizes, 5, c.low, c.high);
    EXPECT_TRUE(Gradcheck(fn, {input})) << ToString(sizes);
  }
  EXPECT_TRUE(GradGradcheck([&c](TensorSpan in) { return Square(c.fn(in[0])); },
                            {RandomInput({2, 3}, 6, c.low, c.high)}));
}

INSTANTIATE_TEST_SUITE_P(
    All, UnaryGradientTest,
    ::testing::Values(
        UnaryCase{"Neg", Neg}, UnaryCase{"Abs", Abs},
        UnaryCase{"Square", Square}, UnaryCase{"Exp", Exp},
        UnaryCase{"Log", Log, 0.5, 2}, UnaryCase{"Sqrt", Sqrt, 0.5, 2},
        UnaryCase{"Rsqrt", Rsqrt, 0.5, 2},
        UnaryCase{"Reciprocal", Reciprocal, 0.5, 2}, UnaryCase{"Tanh", Tanh},
        UnaryCase{"Sigmoid", Sigmoid}, UnaryCase{"Relu", Relu},
        UnaryCase{"Silu", Silu}, UnaryCase{"Gelu", Gelu}, UnaryCase{"Erf", Erf},
        UnaryCase{"GeluExact", GeluExact},
        UnaryCase{"Scalars",
                  [](const Tensor& a) {
                    return Sub(2, Mul(Add(Div(a, 3.0), 1), 5.0));
                  }},
        UnaryCase{"MaxScalar", [](const Tensor& a) { return Maximum(a, 0.3); }},
        UnaryCase{"MinScalar", [](const Tensor& a) { return Minimum(a, 0.3); }},
        UnaryCase{"Pow", [](const Tensor& a) { return Pow(a, 2.5); }, 0.5, 2},
        UnaryCase{"PowOfNegative",
                  [](const Tensor& a) { return Pow(a, 3.0); }}),
    [](const auto& info) { return std::string(info.param.name); });

struct BinaryCase {
  const char* name;
  Tensor (*fn)(const Tensor&, const Tensor&);
  double low = -2;
  double high = 2;
};

class BinaryGradientTest : public ::testing::TestWithParam<BinaryCase> {};

TEST_P(BinaryGradientTest, MatchesDifferences) {
  const BinaryCase& c = GetParam();
  const TensorFunction fn = [&c](TensorSpan in) { return c.fn(in[0], in[1]); };
  const std::vector<std::pair<Shape, Shape>> sizes = {
      {{2, 3}, {2, 3}}, {{2, 3}, {3}},       {{3}, {2, 3}}, {{2, 1}, {1, 3}},
      {{}, {2, 2}},     {{2, 1, 2}, {2, 1}}, {{0, 2}, {2}}, {{1, 1}, {1, 1}},
  };
  for (const auto& [a, b] : sizes) {
    EXPECT_TRUE(Gradcheck(fn, {RandomInput(a, 7, c.low, c.high),
                               RandomInput(b, 8, c.low, c.high)}))
        << ToString(a) << " " << ToString(b);
  }
  EXPECT_TRUE(
      GradGradcheck([&c](TensorSpan in) { return Square(c.fn(in[0], in[1])); },
                    {RandomInput({2, 2}, 9, c.low, c.high),
                     RandomInput({2}, 10, c.low, c.high)}));
  // The same tensor as both operands.
  EXPECT_TRUE(Gradcheck([&c](TensorSpan in) { return c.fn(in[0], in[0]); },
                        {RandomInput({3}, 11, c.low, c.high)}));
}

INSTANTIATE_TEST_SUITE_P(
    All, BinaryGradientTest,
    ::testing::Values(
        BinaryCase{"Add", [](const Tensor& a,
                             const Tensor& b) { return Add(a, b, 0.7); }},
        BinaryCase{"Sub", [](const Tensor& a,
                             const Tensor& b) { return Sub(a, b, 0.7); }},
        BinaryCase{"Mul",
                   [](const Tensor& a, const Tensor& b) { return Mul(a, b); }},
        BinaryCase{"Div",
                   [](const Tensor& a, const Tensor& b) { return Div(a, b); },
                   0.5, 2},
        BinaryCase{"Pow",
                   [](const Tensor& a, const Tensor& b) { return Pow(a, b); },
                   0.5, 2},
        BinaryCase{"Maximum", [](const Tensor& a,
                                 const Tensor& b) { return Maximum(a, b); }},
        BinaryCase{"Minimum", [](const Tensor& a,
                                 const Tensor& b) { return Minimum(a, b); }},
        BinaryCase{"Where",
                   [](const Tensor& a, const Tensor& b) {
                     return Where(Less(a.Detach(), b.Detach()), a, b);
                   }}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(SwiGluTest, IsSiluTimesUp) {
  const TensorFunction fn = [](TensorSpan in) { return SwiGlu(in[0], in[1]); };
  for (const Shape& sizes : {Shape{2, 3}, Shape{1}, Shape{0, 2}}) {
    EXPECT_TRUE(
        Gradcheck(fn, {RandomInput(sizes, 1), RandomInput(sizes, 2, -2, 2)}));
  }
  EXPECT_TRUE(GradGradcheck(fn, {RandomInput({3}, 1), RandomInput({3}, 2)}));
  const Tensor gate = MakeInput(RandomInput({5}, 3), TestLayout::kContiguous);
  const Tensor up = MakeInput(RandomInput({5}, 4), TestLayout::kContiguous);
  const std::vector<double> fused = SwiGlu(gate, up).ToVector<double>();
  const std::vector<double> apart = Mul(Silu(gate), up).ToVector<double>();
  for (size_t i = 0; i < 5; ++i) EXPECT_NEAR(fused[i], apart[i], 1e-15);
}

TEST(WhereTest, KeepsInfiniteGradientsOut) {
  const double inf = std::numeric_limits<double>::infinity();
  const Tensor a = Full({1}, 1, kFloat64).set_requires_grad(true);
  const Tensor b = Full({1}, 1, kFloat64).set_requires_grad(true);
  const Tensor y = Where(Less(a, Add(b, 1)), a, b);
  ASSERT_TRUE(Backward(y, {.gradient = Full({1}, inf, kFloat64)}).ok());
  EXPECT_THAT(a.grad().ToVector<double>(), ElementsAre(inf));
  EXPECT_THAT(b.grad().ToVector<double>(), ElementsAre(0));
}

TEST(MaximumTest, SharesTheGradientOfATie) {
  const Tensor a = Full({1}, 2, kFloat64).set_requires_grad(true);
  const Tensor b = Full({1}, 2, kFloat64).set_requires_grad(true);
  ASSERT_TRUE(Backward(Maximum(a, b)).ok());
  EXPECT_THAT(a.grad().ToVector<double>(), ElementsAre(0.5));
  EXPECT_THAT(b.grad().ToVector<double>(), ElementsAre(0.5));
}

// Expects PyTorch's results.
TEST(NanTest, PassesThroughGradients) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto gradients = [](const auto& fn, const Tensor& a, const Tensor& b) {
    EXPECT_TRUE(Backward(Sum(fn(a, b))).ok());
    std::vector<float> both = a.grad().ToVector<float>();
    for (float x : b.grad().ToVector<float>()) both.push_back(x);
    return both;
  };
  const auto leaf = [](std::vector<float> values) {
    const auto count = static_cast<int64_t>(values.size());
    return Values({count}, std::move(values)).set_requires_grad(true);
  };
  for (auto fn :
       {static_cast<Tensor (*)(const Tensor&, const Tensor&)>(Maximum),
        static_cast<Tensor (*)(const Tensor&, const Tensor&)>(Minimum)}) {
    EXPECT_THAT(gradients(fn, leaf({nan, 1, nan, 2}), leaf({1, nan, nan, 2})),
                ElementsAre(1, 1, 1, 0.5, 1, 1, 1, 0.5));
  }
  const Tensor x = leaf({nan, 0, -1, 2});
  ASSERT_TRUE(Backward(Sum(Relu(x))).ok());
  EXPECT_THAT(x.grad().ToVector<float>(), ElementsAre(1, 0, 0, 1));
  EXPECT_TRUE(std::isnan(Relu(x).ToVector<float>()[0]));
}

TEST(PowTest, HasFiniteGradientsAtZero) {
  const auto leaf = [](std::vector<double> values) {
    return FromValues<double>({static_cast<int64_t>(values.size())},
                              absl::MakeConstSpan(values))
        .set_requires_grad(true);
  };
  const Tensor a = leaf({0, 0, 0, 2});
  const Tensor b = leaf({0, 1, 2, 0});
  const Tensor y = Pow(a, b);
  EXPECT_THAT(y.ToVector<double>(), ElementsAre(1, 0, 0, 1));
  ASSERT_TRUE(Backward(Sum(y), {.create_graph = true}).ok());
  EXPECT_THAT(a.grad().ToVector<double>(), ElementsAre(0, 1, 0, 0));
  EXPECT_THAT(b.grad().ToVector<double>(),
              ElementsAre(0, 0, 0, ::testing::DoubleEq(std::log(2.0))));
  const Tensor inputs[] = {a, b};
  const TensorList second =
      Gradients(Sum(Add(a.grad(), b.grad())), inputs).value();
  for (const Tensor& gradient : second) {
    for (double value : gradient.ToVector<double>()) {
      EXPECT_TRUE(std::isfinite(value)) << value;
    }
  }
  // These gradients are in the graph that owns them: break the cycle.
  a.set_grad(Tensor());
  b.set_grad(Tensor());
  const Tensor c = leaf({0, 3});
  const double inf = std::numeric_limits<double>::infinity();
  ASSERT_TRUE(
      Backward(Pow(c, 0.0), {.gradient = leaf({inf, inf}).Detach()}).ok());
  EXPECT_THAT(c.grad().ToVector<double>(), ElementsAre(0, 0));
}

TEST(OpInfoTest, EachKindHasItsName) {
  EXPECT_STREQ(UnaryPointwiseOp::InfoOf(UnaryOp::kNeg).name, "neg");
  EXPECT_STREQ(UnaryPointwiseOp::InfoOf(UnaryOp::kExp).name, "exp");
  EXPECT_STREQ(UnaryPointwiseOp::InfoOf(UnaryOp::kGelu).name, "gelu");
  EXPECT_STREQ(UnaryPointwiseOp::InfoOf(UnaryOp::kGeluExact).name,
               "gelu_exact");
  EXPECT_STREQ(UnaryPointwiseOp::InfoOf(UnaryOp::kNot).name, "logical_not");
  EXPECT_STREQ(BinaryPointwiseOp::InfoOf(BinaryOp::kPow).name, "pow");
  EXPECT_STREQ(BinaryPointwiseOp::InfoOf(BinaryOp::kEqual).name, "equal");
  EXPECT_STREQ(BinaryPointwiseOp::InfoOf(BinaryOp::kOr).name, "logical_or");
}

using ::testing::ElementsAre;

std::vector<float> Values(const Tensor& x) { return x.ToVector<float>(); }

TEST(OperatorsTest, AreArithmetic) {
  const Tensor a = FromValues<float>({2}, {6, 8});
  const Tensor b = FromValues<float>({2}, {2, -4});
  EXPECT_THAT(Values(a + b), ElementsAre(8, 4));
  EXPECT_THAT(Values(a - b), ElementsAre(4, 12));
  EXPECT_THAT(Values(a * b), ElementsAre(12, -32));
  EXPECT_THAT(Values(a / b), ElementsAre(3, -2));
  EXPECT_THAT(Values(-a), ElementsAre(-6, -8));
  EXPECT_THAT(Values(a + 1), ElementsAre(7, 9));
  EXPECT_THAT(Values(a - 1), ElementsAre(5, 7));
  EXPECT_THAT(Values(a * 3), ElementsAre(18, 24));
  EXPECT_THAT(Values(a / 2), ElementsAre(3, 4));
  EXPECT_THAT(Values(1 + a), ElementsAre(7, 9));
  EXPECT_THAT(Values(1 - a), ElementsAre(-5, -7));
  EXPECT_THAT(Values(3 * a), ElementsAre(18, 24));
  EXPECT_THAT(Values(24 / a), ElementsAre(4, 3));
  EXPECT_THAT(Values((a + 2 * b) / a), ElementsAre(10.0f / 6, 0));
}

TEST(OperatorsTest, AreDifferentiable) {
  Tensor x = FromValues<float>({2}, {3, 5});
  x.set_requires_grad(true);
  ASSERT_TRUE(Backward(Sum(x * x - 4 * x)).ok());
  EXPECT_THAT(Values(x.grad()), ElementsAre(2, 6));
}

TEST(SubscriptTest, TakesElementsAndRanges) {
  const Tensor x = FromValues<float>({2, 3}, {0, 1, 2, 3, 4, 5});
  EXPECT_THAT(Values(x[1]), ElementsAre(3, 4, 5));
  EXPECT_THAT(Values(x[-2]), ElementsAre(0, 1, 2));
  EXPECT_THAT(Values(x[1][2]), ElementsAre(5));
  EXPECT_EQ(x[1][2].ndim(), 0);
  EXPECT_THAT(x[Range{1}].sizes(), ElementsAre(1, 3));
  EXPECT_THAT(Values(x[{1, Range{0, 2}}]), ElementsAre(3, 4));
  EXPECT_THAT(Values(x[{Range{}, -1}]), ElementsAre(2, 5));
  EXPECT_THAT((x[{Range{}, Range{1, 99}}]).sizes(), ElementsAre(2, 2));
  EXPECT_EQ(x[1].storage(), x.storage());
}

TEST(SubscriptDeathTest, NamesTheMissingIndex) {
  const Tensor x = Ones({2, 3});
  EXPECT_DEATH((void)x[2], "select.*2");
  EXPECT_DEATH((void)(x[{0, 0, 0}]), "3 indices of f32\\[2, 3\\]");
  EXPECT_DEATH((void)Tensor()[0], "\\[\\] of an undefined tensor");
}

}  // namespace
}  // namespace crosshatch
