// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <string>

#include "crosshatch/tensor/kernels/kernel_testutil.h"
#include "crosshatch/tensor/kernels/reference/rows.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using kernel_test::AllOrFew;
using kernel_test::ExpectWithin;
using kernel_test::Gamma;
using kernel_test::Kernels;
using kernel_test::Operand;
using kernel_test::Random;
using kernel_test::Real;
using kernel_test::Reals;
using kernel_test::Workspace;

constexpr double kEps = 1e-5;

struct Case {
  DType dtype;
  int64_t rows, cols;
  bool centered;  // layer_norm, else rms_norm.
  DType dweight_dtype;
  WriteMode mode = WriteMode::kOverwrite;
};

void TestNorm(const Case& c) {
  Random random(static_cast<uint64_t>(c.rows * 1000 + c.cols));
  const std::vector<int64_t> stored = {c.rows, c.cols + 5};
  Operand x(c.dtype, stored), out(c.dtype, stored), grad(c.dtype, stored),
      dx(c.dtype, stored);
  Operand weight(c.dtype, {c.cols}), bias(c.dtype, {c.cols});
  Operand mean(StatisticsDType(c.dtype), {c.rows}),
      rstd(StatisticsDType(c.dtype), {c.rows});
  Operand dweight(c.dweight_dtype, {c.cols}), dbias(c.dweight_dtype, {c.cols});
  x.Fill(random, -2, 3);
  weight.Fill(random, -2, 2);
  bias.Fill(random, -2, 2);
  grad.Fill(random, -1, 1);
  dweight.Fill(random, -1, 1);
  dbias.Fill(random, -1, 1);
  const Reals old_dweight = dweight.Read(), old_dbias = dbias.Read();
  const std::string what = std::string(c.centered ? "layer_norm" : "rms_norm") +
                           " of " + Name(c.dtype) + " " +
                           std::to_string(c.rows) + " x " +
                           std::to_string(c.cols);

  if (c.centered) {
    const LayerNormArgs forward = {
        c.rows,         c.cols,      x.rows(),    weight.data(), bias.data(),
        out.rows_out(), mean.data(), rstd.data(), c.dtype,       kEps};
    LayerNormBackwardArgs backward;
    backward.rows = c.rows;
    backward.cols = c.cols;
    backward.grad = grad.rows();
    backward.x = x.rows();
    backward.weight = weight.data();
    backward.mean = mean.data();
    backward.rstd = rstd.data();
    backward.dx = dx.rows_out();
    backward.dweight = dweight.data();
    backward.dbias = dbias.data();
    backward.dtype = c.dtype;
    backward.dweight_dtype = c.dweight_dtype;
    backward.dweight_mode = backward.dbias_mode = c.mode;
    Workspace workspace(
        Kernels().layer_norm_backward_workspace_bytes(backward));
    backward.workspace = workspace.data();
    kernel_test::RunAllWays(
        {&out, &mean, &rstd, &dx, &dweight, &dbias},
        [&](KernelContext& context) {
          Kernels().layer_norm(forward, context);
          Kernels().layer_norm_backward(backward, context);
        },
        what);
  } else {
    const RmsNormArgs forward = {
        c.rows,         c.cols,      x.rows(), weight.data(),
        out.rows_out(), rstd.data(), c.dtype,  kEps};
    RmsNormBackwardArgs backward;
    backward.rows = c.rows;
    backward.cols = c.cols;
    backward.grad = grad.rows();
    backward.x = x.rows();
    backward.weight = weight.data();
    backward.rstd = rstd.data();
    backward.dx = dx.rows_out();
    backward.dweight = dweight.data();
    backward.dtype = c.dtype;
    backward.dweight_dtype = c.dweight_dtype;
    backward.dweight_mode = c.mode;
    Workspace workspace(Kernels().rms_norm_backward_workspace_bytes(backward));
    backward.workspace = workspace.data();
    kernel_test::RunAllWays(
        {&out, &rstd, &dx, &dweight},
        [&](KernelContext& context) {
          Kernels().rms_norm(forward, context);
          Kernels().rms_norm_backward(backward, context);
        },
        what);
  }

  const Reals w = weight.Read(), b = bias.Read();
  Reals dw(w.size()), dw_size(w.size()), db(w.size()), db_size(w.size());
  // The mean, the sum of squares and the root: 39 + log2(cols) additions and a
  // few more roundings, of numbers up to 3. Rows have a standard deviation of
  // about 1.4.
  const Real error = Gamma(c.dtype, 64);
  for (int64_t r = 0; r < c.rows; ++r) {
    const auto row = [&](const Operand& operand) {
      return reference::ReadRun(static_cast<const char*>(operand.data()) +
                                    r * operand.stride(0) * SizeOf(c.dtype),
                                c.dtype, c.cols);
    };
    const Reals values = row(x), g = row(grad);
    const reference::NormStatistics norm =
        reference::NormOf(values, c.centered, kEps);
    Real largest = 0;
    for (Real v : values) largest = std::max(largest, std::abs(v));
    // An error of the mean, relative to 1 / rstd, is amplified by `spread`.
    const Real spread = 1 + (c.centered ? 2 * largest * norm.rstd : Real(0));
    Reals expected, bounds;
    for (size_t i = 0; i < values.size(); ++i) {
      const Real xhat = (values[i] - norm.mean) * norm.rstd;
      expected.push_back(xhat * w[i] + (c.centered ? b[i] : 0));
      bounds.push_back(
          error * spread * spread *
              ((std::abs(xhat) + (c.centered ? 1 : 0)) * std::abs(w[i])) +
          Gamma(c.dtype, 1) * std::abs(b[i]));
      dw[i] += g[i] * xhat;
      dw_size[i] += std::abs(g[i]) * (std::abs(xhat) + spread) * spread;
      db[i] += g[i];
      db_size[i] += std::abs(g[i]);
    }
    ExpectWithin(row(out), expected, bounds, c.dtype, what + " out");

    const Reals expected_dx =
        reference::NormBackward(values, w, g, c.centered, kEps);
    Real mean_g = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      mean_g += std::abs(g[i] * w[i]) *
                (1 + std::abs(values[i] - norm.mean) * norm.rstd) /
                static_cast<Real>(values.size());
    }
    bounds.clear();
    for (size_t i = 0; i < values.size(); ++i) {
      const Real xhat = std::abs(values[i] - norm.mean) * norm.rstd + spread;
      bounds.push_back(2 * error * spread * spread * norm.rstd *
                       (std::abs(g[i] * w[i]) + mean_g * (1 + xhat)));
    }
    ExpectWithin(row(dx), expected_dx, bounds, c.dtype, what + " dx");
  }
  const auto check = [&](const Operand& actual, Reals expected,
                         const Reals& sizes, const Reals& old,
                         const char* name) {
    Reals bounds;
    for (size_t i = 0; i < expected.size(); ++i) {
      if (c.mode == WriteMode::kAccumulate) expected[i] += old[i];
      bounds.push_back(2 * error * sizes[i] +
                       Gamma(c.dtype, 2) * std::abs(expected[i]));
    }
    ExpectWithin(actual.Read(), expected, bounds, c.dweight_dtype, what + name);
  };
  check(dweight, dw, dw_size, old_dweight, " dweight");
  if (c.centered) check(dbias, db, db_size, old_dbias, " dbias");
}

TEST(NormTest, ForwardAndBackward) {
  for (bool centered : {false, true}) {
    for (DType dtype : kernel_test::kFloatDTypes) {
      for (int64_t cols : AllOrFew<int64_t>(
               {1, 2, 3, 5, 7, 13, 31, 64, 127, 1500}, {1, 7, 64, 1500})) {
        TestNorm({dtype, 3, cols, centered, dtype});
      }
      // Exceeds a block's registers.
      TestNorm({dtype, 2, 9000, centered, dtype});
      TestNorm({dtype, 0, 7, centered, dtype});
      TestNorm({dtype, 3, 0, centered, dtype});
    }
    for (DType dtype : AllOrFew({DType::kFloat32, DType::kFloat64,
                                 DType::kBFloat16, DType::kFloat16},
                                {DType::kFloat32, DType::kBFloat16})) {
      TestNorm({dtype, 600, 130, centered, dtype, WriteMode::kAccumulate});
    }
    // More rows per block than threads.
    TestNorm({DType::kFloat32, 17000, 3, centered, DType::kFloat32});
    TestNorm({DType::kBFloat16, 70, 40, centered, DType::kFloat32,
              WriteMode::kAccumulate});
  }
}

TEST(NormTest, NoRowsOverwriteWithZeros) {
  Operand dweight(DType::kFloat32, {4});
  RmsNormBackwardArgs args;
  args.cols = 4;
  args.dweight = dweight.data();
  EXPECT_EQ(Kernels().rms_norm_backward_workspace_bytes(args), 0);
  KernelContext& context = kernel_test::Context();
  Kernels().rms_norm_backward(args, context);
  EXPECT_EQ(dweight.Read(), Reals(4, 0));
}

TEST(NormTest, WithoutWeight) {
  Random random(2);
  Operand x(DType::kFloat32, {5, 40}), plain(DType::kFloat32, {5, 40}),
      weighted(DType::kFloat32, {5, 40}), rstd(DType::kFloat32, {5}),
      ones(DType::kFloat32, {40});
  x.Fill(random, -1, 1);
  ones.Set(Reals(40, 1));
  KernelContext& context = kernel_test::Context();
  Kernels().rms_norm({5, 40, x.rows(), nullptr, plain.rows_out(), rstd.data(),
                      DType::kFloat32, kEps},
                     context);
  Kernels().rms_norm({5, 40, x.rows(), ones.data(), weighted.rows_out(),
                      rstd.data(), DType::kFloat32, kEps},
                     context);
  EXPECT_EQ(plain.Read(), weighted.Read());
}

}  // namespace
}  // namespace crosshatch
