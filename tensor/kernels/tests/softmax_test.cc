// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <string>

#include "crosshatch/tensor/kernels/kernel_testutil.h"
#include "crosshatch/tensor/kernels/reference/rows.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using kernel_test::ExpectWithin;
using kernel_test::Gamma;
using kernel_test::Kernels;
using kernel_test::Operand;
using kernel_test::Random;
using kernel_test::Real;
using kernel_test::Reals;

// Rows of `cols` elements, three apart.
RowsInput Rows(const Operand& x) { return {x.data(), x.stride(0)}; }

void TestSoftmax(DType dtype, int64_t rows, int64_t cols, bool log) {
  Random random(static_cast<uint64_t>(cols));
  const std::vector<int64_t> stored = {rows, cols + 3};
  Operand x(dtype, stored), y(dtype, stored), grad(dtype, stored),
      dx(dtype, stored);
  x.Fill(random, -9, 9);
  grad.Fill(random, -2, 2);
  const std::string what = std::string(log ? "log_" : "") + "softmax of " +
                           Name(dtype) + " " + std::to_string(rows) + " x " +
                           std::to_string(cols);
  const SoftmaxArgs forward = {rows, cols, Rows(x), y.rows_out(), dtype, log};
  const SoftmaxBackwardArgs backward = {
      rows, cols, Rows(y), Rows(grad), dx.rows_out(), dtype, log};
  kernel_test::RunAllWays(
      {&y, &dx},
      [&](KernelContext& context) {
        Kernels().softmax(forward, context);
        Kernels().softmax_backward(backward, context);
      },
      what);
  const Real sum_error = Gamma(dtype, 60);
  for (int64_t r = 0; r < rows; ++r) {
    const auto row = [&](const Operand& operand) {
      return reference::ReadRun(static_cast<const char*>(operand.data()) +
                                    r * operand.stride(0) * SizeOf(dtype),
                                dtype, cols);
    };
    const Reals values = row(x), actual = row(y), g = row(grad);
    const Reals expected = reference::Softmax(values, log);
    Reals bounds;
    for (size_t i = 0; i < expected.size(); ++i) {
      // x - max has a rounding error of at most that of 18, and so does the log
      // of the sum. A relative error of 60 roundings covers sum and
      // exponentials.
      bounds.push_back(
          log ? sum_error + Gamma(dtype, 40)
              : (sum_error + Gamma(dtype, 40)) * expected[i] +
                    reference::Smallest(kernel_test::ComputeDType(dtype)));
    }
    ExpectWithin(actual, expected, bounds, dtype, what);

    const Reals expected_dx = reference::SoftmaxBackward(actual, g, log);
    Real magnitude = 0;
    for (size_t i = 0; i < g.size(); ++i) {
      magnitude += std::abs(g[i] * (log ? 1 : actual[i]));
    }
    bounds.clear();
    for (size_t i = 0; i < g.size(); ++i) {
      const Real p = log ? std::exp(actual[i]) : actual[i];
      bounds.push_back(Gamma(dtype, 60) *
                       (std::abs(g[i]) * (log ? 1 : p) + magnitude * p));
    }
    ExpectWithin(row(dx), expected_dx, bounds, dtype, what + " backward");
  }
}

TEST(SoftmaxTest, ForwardAndBackward) {
  for (DType dtype : kernel_test::kFloatDTypes) {
    for (bool log : {false, true}) {
      for (int64_t cols : {0, 1, 2, 3, 5, 7, 13, 31, 64, 127, 2500}) {
        TestSoftmax(dtype, 3, cols, log);
      }
      TestSoftmax(dtype, 0, 5, log);
      TestSoftmax(dtype, 200, 257, log);
    }
  }
}

}  // namespace
}  // namespace crosshatch
