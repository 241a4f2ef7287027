// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/ops/float8.h"

#include <cmath>
#include <limits>
#include <vector>

#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/dtype.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/tensor/rank_context.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsNan;

/// Returns values over [-1, 1], of every binade down to 2^-10.
Tensor Values(ShapeView sizes, int salt) {
  std::vector<float> values;
  for (int64_t i = 0; i < NumElements(sizes); ++i) {
    const auto mantissa = static_cast<double>((37 * i + 11 * salt) % 101 - 50);
    values.push_back(static_cast<float>(
        std::ldexp(mantissa / 50, -static_cast<int>((i + salt) % 11))));
  }
  return FromValues<float>(sizes, values);
}

/// Returns the real values that stand for `x`.
std::vector<double> Restored(const Float8Values& x) {
  const Tensor values = ToDType(x.values, kFloat32);
  return Mul(ToDType(values, kFloat64), ToDType(x.inverse_scale, kFloat64))
      .ToVector<double>();
}

TEST(Float8Test, CastsSaturateAndComeBack) {
  const float infinity = std::numeric_limits<float>::infinity();
  const Tensor x = FromValues<float>(
      {6}, std::vector<float>{1, -449, 1e30f, -infinity, 0.3f, 0});
  EXPECT_THAT(ToDType(ToDType(x, kFloat8E4M3), kFloat32).ToVector<float>(),
              ElementsAre(1, -448, 448, -448, 0.3125f, 0));
  EXPECT_THAT(ToDType(ToDType(x, kFloat8E5M2), kFloat32).ToVector<float>(),
              ElementsAre(1, -448, 57344, -57344, 0.3125f, 0));
  const Tensor nan = FromValues<float>({1}, std::vector<float>{NAN});
  EXPECT_THAT(ToDType(ToDType(nan, kFloat8E4M3), kBFloat16).ToVector<float>(),
              Each(IsNan()));
}

TEST(Float8Test, MovesLikeAnyDType) {
  const Tensor x = ToDType(Arange(6, kFloat32), kFloat8E4M3);
  const Tensor m = Reshape(x, {2, 3});
  EXPECT_THAT(Contiguous(Transpose(m, 0, 1)).ToVector<float>(),
              ElementsAre(0, 3, 1, 4, 2, 5));
  EXPECT_THAT(Cat({x, x}, 0).ToVector<float>(),
              ElementsAre(0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5));
  EXPECT_THAT(Zeros({2}, kFloat8E5M2).ToVector<float>(), ElementsAre(0, 0));
}

TEST(Float8Test, ArithmeticOnItIsAnError) {
  const Tensor x = Zeros({2}, kFloat8E4M3);
  EXPECT_DEATH(Add(x, x), "f8e4m3");
  EXPECT_DEATH(ToDType(x, kInt32), "float8 is converted from and to f32");
  EXPECT_DEATH(ToDType(x, kFloat64), "float8 is converted from and to f32");
}

// The largest magnitude becomes the format's largest value, and rounding is
// within half a unit: 2^-4 of a normal e4m3, 2^-3 of an e5m2, and half the
// smallest value below.
TEST(Float8Test, ScaledValuesAreWithinHalfAUnit) {
  for (const DType dtype : {kFloat8E4M3, kFloat8E5M2}) {
    const double unit = dtype == kFloat8E4M3 ? 0x1p-4 : 0x1p-3;
    const double smallest = dtype == kFloat8E4M3 ? 0x1p-9 : 0x1p-16;
    for (const Shape& dims : {Shape{}, Shape{0}, Shape{1}}) {
      for (const bool power_of_two : {false, true}) {
        const Tensor x = Values({7, 5}, 3);
        const Float8Values x8 = ToFloat8(x, dtype, dims, power_of_two);
        const std::vector<double> expected = x.ToVector<double>();
        const std::vector<double> inverse =
            Expand(x8.inverse_scale, {7, 5}).ToVector<double>();
        const std::vector<double> restored = Restored(x8);
        for (size_t i = 0; i < expected.size(); ++i) {
          // The scale and its product with x are rounded to float.
          const double bound = std::max(std::abs(expected[i]) * unit,
                                        inverse[i] * smallest / 2) +
                               std::abs(expected[i]) * 0x1p-21;
          EXPECT_NEAR(restored[i], expected[i], bound) << i;
        }
      }
    }
  }
}

TEST(Float8Test, ProductsOfEveryForm) {
  const Tensor x = Values({2, 3, 16}, 1);
  const Tensor w = Values({5, 16}, 2);
  const Tensor g = Values({2, 3, 5}, 3);
  struct Case {
    Tensor a, b;
    MatMulSpec spec;
    Shape a_dims, b_dims;
  };
  const std::vector<Case> cases = {
      {x, w, {.transpose_b = true}, {2}, {1}},
      {g, w, {}, {2}, {0}},
      {g, x, {.transpose_a = true, .sum_batch = true}, {0, 1}, {0, 1}},
      {Select(g, 0, 0), Select(x, 0, 1), {.transpose_a = true}, {0}, {0}},
  };
  for (const Case& c : cases) {
    for (const bool by_row : {false, true}) {
      const Float8Values a =
          ToFloat8(c.a, kFloat8E4M3, by_row ? c.a_dims : Shape{}, by_row);
      const Float8Values b =
          ToFloat8(c.b, kFloat8E4M3, by_row ? c.b_dims : Shape{}, by_row);
      const auto restored = [](const Float8Values& v) {
        return FromValues<double>(v.values.sizes(), Restored(v));
      };
      const std::vector<double> expected =
          MatMul(restored(a), restored(b), c.spec).ToVector<double>();
      const std::vector<double> magnitudes =
          MatMul(Abs(restored(a)), Abs(restored(b)), c.spec).ToVector<double>();
      const std::vector<double> actual =
          ScaledMatMul(a, b, c.spec, kFloat32).ToVector<double>();
      ASSERT_EQ(actual.size(), expected.size());
      for (size_t i = 0; i < actual.size(); ++i) {
        // At most 16 terms, two scales, and the result.
        EXPECT_NEAR(actual[i], expected[i], magnitudes[i] * 19 * 0x1p-24);
      }
    }
  }
}

TEST(Float8Test, ChecksItsOperands) {
  const Float8Values e4m3 = ToFloat8(Ones({2, 2}), kFloat8E4M3);
  const Float8Values e5m2 = ToFloat8(Ones({2, 2}), kFloat8E5M2);
  EXPECT_DEATH(ScaledMatMul(e5m2, e5m2, {}, kFloat32), "at most one e5m2");
  EXPECT_DEATH(ScaledMatMul(e4m3, e4m3, {}, kFloat64), "f32, bf16 or f16");
  EXPECT_DEATH(ScaledMatMul(e4m3, {e4m3.values, Ones({2})}, {}, kFloat32),
               "inverse scale of b is f32");
  EXPECT_DEATH(Float8Linear(Ones({2, 2}), e4m3.values, Tensor(), Tensor(),
                            Float8Recipe::kTensorwise),
               "float8 linear by f8e4m3");
}

/// Bounds the error of a product of operands that are rounded to float8.
struct LinearCase {
  Float8Recipe recipe;
  DType dtype;
};

// |a8 b8 - a b| <= |a| |b| (ea + eb + ea eb) of each term's magnitude, if no
// value is below the format's normal range. With values in one binade around
// the largest, none is.
TEST(Float8Test, LinearAndItsGradientsAreWithinTheFormatsBound) {
  for (const LinearCase& c : {LinearCase{Float8Recipe::kTensorwise, kFloat32},
                              LinearCase{Float8Recipe::kRowwise, kFloat32},
                              LinearCase{Float8Recipe::kTensorwise, kBFloat16},
                              LinearCase{Float8Recipe::kRowwise, kBFloat16}}) {
    const auto input = [&](ShapeView sizes, int salt) {
      std::vector<float> values;
      for (int64_t i = 0; i < NumElements(sizes); ++i) {
        const auto value =
            static_cast<float>(64 + (37 * i + 11 * salt) % 63) / 128;
        values.push_back((i * 7 + salt) % 3 == 0 ? -value : value);
      }
      return ToDType(FromValues<float>(sizes, values), c.dtype);
    };
    const auto gradients_of = [&](bool in_float8) {
      Tensor x = input({2, 3, 16}, 1).set_requires_grad(true);
      Tensor w = input({5, 16}, 2).set_requires_grad(true);
      Tensor b = input({5}, 4).set_requires_grad(true);
      const Tensor y = in_float8
                           ? Float8Linear(x, w, Tensor(), b, c.recipe)
                           : Linear(ToDType(x, kFloat64), ToDType(w, kFloat64),
                                    ToDType(b, kFloat64));
      const Tensor g = ToDType(input({2, 3, 5}, 3), y.dtype());
      EXPECT_TRUE(Backward(y, {.gradient = g}).ok());
      EXPECT_EQ(y.dtype(), in_float8 ? c.dtype : kFloat64);
      return std::vector<std::vector<double>>{
          y.ToVector<double>(), x.grad().ToVector<double>(),
          w.grad().ToVector<double>(), b.grad().ToVector<double>()};
    };
    const auto expected = gradients_of(false);
    const auto actual = gradients_of(true);
    const double of_gradient =
        c.recipe == Float8Recipe::kTensorwise ? 0x1p-3 : 0x1p-4;
    const double of_value = 0x1p-4;
    const double rounding = c.dtype == kBFloat16 ? 0x1p-8 : 0x1p-20;
    // Each term is below 1. Scales of tensors need not be powers of two, so
    // the product with them is rounded once more.
    const auto bound = [&](double ea, double eb, double terms, double y) {
      return terms * (ea + eb + ea * eb) + std::abs(y) * rounding +
             terms * rounding;
    };
    const double terms[] = {16, 5, 6, 6};
    for (size_t t = 0; t < 3; ++t) {
      for (size_t i = 0; i < actual[t].size(); ++i) {
        EXPECT_NEAR(actual[t][i], expected[t][i],
                    bound(t == 0 ? of_value : of_gradient, of_value, terms[t],
                          expected[t][i]))
            << t << " " << i;
      }
    }
    for (size_t i = 0; i < actual[3].size(); ++i) {
      EXPECT_NEAR(actual[3][i], expected[3][i], terms[3] * terms[3] * rounding);
    }
  }
}

TEST(Float8Test, AWeightInFloat8GivesTheSameBits) {
  Tensor x = Values({3, 16}, 1).set_requires_grad(true);
  Tensor w = Values({5, 16}, 2).set_requires_grad(true);
  const Float8Values w8 = ToFloat8(w, kFloat8E4M3);
  Tensor leaf = Clone(w8.values).set_requires_grad(true);
  const Tensor y =
      Float8Linear(x, w, Tensor(), Tensor(), Float8Recipe::kTensorwise);
  const Tensor z = Float8Linear(x, leaf, w8.inverse_scale, Tensor(),
                                Float8Recipe::kTensorwise);
  EXPECT_EQ(y.ToVector<float>(), z.ToVector<float>());
  const TensorList of_y = *Gradients(Sum(Square(y)), {x, w});
  const TensorList of_z = *Gradients(Sum(Square(z)), {x});
  EXPECT_EQ(of_y[0].ToVector<float>(), of_z[0].ToVector<float>());
}

TEST(Float8Test, AnEmptyBatchHasZeroGradients) {
  for (const auto recipe :
       {Float8Recipe::kTensorwise, Float8Recipe::kRowwise}) {
    Tensor x = Zeros({0, 16}).set_requires_grad(true);
    Tensor w = Values({4, 16}, 2).set_requires_grad(true);
    const Tensor y = Float8Linear(x, w, Tensor(), Tensor(), recipe);
    EXPECT_EQ(y.sizes(), Shape({0, 4}));
    ASSERT_TRUE(Backward(Sum(y)).ok());
    EXPECT_THAT(w.grad().ToVector<float>(), Each(0));
  }
}

}  // namespace
}  // namespace crosshatch
