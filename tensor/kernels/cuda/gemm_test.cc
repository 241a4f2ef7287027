// SPDX-License-Identifier: Apache-2.0

/// \file
/// How products call the library: in one call, with an algorithm that is
/// selected once. tensor/kernels/tests/ tests the values.

#include "crosshatch/tensor/kernels/cuda/gemm.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "crosshatch/emulation/cuda_runtime.h"
#include "crosshatch/tensor/kernels/cuda/cuda_context.h"
#include "crosshatch/tensor/kernels/kernel_testutil.h"
#include "crosshatch/tensor/kernels/reference/reference.h"
#include "gtest/gtest.h"

namespace crosshatch::internal {
namespace {

using kernel_test::Kernels;
using kernel_test::LayoutKind;
using kernel_test::Operand;
using kernel_test::Random;
using kernel_test::Real;
using kernel_test::Reals;

// x w^T, with w as in a linear layer.
struct Product {
  Product(int64_t m, int64_t n, int64_t k, DType dtype, DType out_dtype,
          LayoutKind layout = LayoutKind::kContiguous)
      : a(dtype, {m, k}),
        b(dtype, {n, k}),
        out(out_dtype, {m, n}, layout),
        bias(out_dtype, {n}) {
    Random random(7);
    // A range that uses all bits of the mantissa.
    for (Operand* each : {&a, &b, &out, &bias}) each->Fill(random, -1.9, 2.2);
    args.m = m;
    args.n = n;
    args.k = k;
    args.a = {a.data(), k, 1};
    args.b = {b.data(), 1, k};
    args.out = {out.data(), out.stride(0), out.stride(1)};
    args.dtype = dtype;
    args.out_dtype = out_dtype;
  }

  // Returns the number of kernels that a product launches.
  int64_t Run() {
    kernel_test::Workspace workspace(Kernels().matmul_workspace_bytes(args));
    args.workspace = workspace.data();
    const int64_t before = emulation::CountsOfRuntime().kernels;
    kernel_test::Run(
        [&](KernelContext& context) { Kernels().matmul(args, context); });
    return emulation::CountsOfRuntime().kernels - before;
  }

  Operand a;
  Operand b;
  Operand out;
  Operand bias;
  MatMulArgs args;
};

TEST(CudaGemmTest, AnAlgorithmIsChosenOnceForAShape) {
  Product first(6, 5, 37, kFloat32, kFloat32);
  const int64_t before = CudaGemmChoices();
  first.Run();
  EXPECT_EQ(CudaGemmChoices(), before + 1);
  first.args.alpha = 2;
  first.Run();
  Product elsewhere(6, 5, 37, kFloat32, kFloat32);
  elsewhere.Run();
  EXPECT_EQ(CudaGemmChoices(), before + 1);
  Product taller(7, 5, 37, kFloat32, kFloat32);
  taller.Run();
  EXPECT_EQ(CudaGemmChoices(), before + 2);
  taller.args.bias = taller.bias.data();
  taller.Run();
  EXPECT_EQ(CudaGemmChoices(), before + 3);
}

TEST(CudaGemmTest, TheLibraryAddsTheBias) {
  for (DType dtype : {kFloat32, kBFloat16, kFloat16}) {
    Product product(6, 5, 7, dtype, dtype);
    product.args.bias = product.bias.data();
    EXPECT_EQ(product.Run(), 1) << Name(dtype);
  }
  // The library has no such epilogue for double or for row-major order.
  Product of_double(6, 5, 7, kFloat64, kFloat64);
  of_double.args.bias = of_double.bias.data();
  EXPECT_EQ(of_double.Run(), 2);
  Product transposed(6, 5, 7, kFloat32, kFloat32, LayoutKind::kTransposed);
  EXPECT_EQ(transposed.Run(), 1);
  transposed.args.bias = transposed.bias.data();
  EXPECT_GT(transposed.Run(), 1);
}

TEST(CudaGemmTest, TheLibraryAddsToTheDestinationOfAGradient) {
  for (DType dtype : {kFloat32, kBFloat16, kFloat16}) {
    Product product(6, 5, 7, dtype, kFloat32);
    product.args.beta = 1;
    EXPECT_EQ(product.Run(), 1) << Name(dtype);
  }
}

// Each operand has a relative error of up to 2^-11, and a product twice that
// and its square.
TEST(CudaGemmTest, Tf32RoundsWhatIsMultiplied) {
  CudaKernelContext& context = CudaContextOf(kernel_test::Context());
  for (DType dtype : {kFloat32, kFloat64, kBFloat16}) {
    Product exact(9, 11, 50, dtype, dtype);
    exact.Run();
    Product rounded(9, 11, 50, dtype, dtype);
    const reference::Sums expected = reference::MatMul(rounded.args);
    context.tf32 = true;
    rounded.Run();
    context.tf32 = false;
    const Reals got = rounded.out.Read();
    if (dtype != kFloat32) {
      EXPECT_EQ(got, exact.out.Read()) << Name(dtype);
      continue;
    }
    Reals bounds = expected.magnitudes;
    Real farthest = 0;
    for (size_t i = 0; i < bounds.size(); ++i) {
      const Real rounding = kernel_test::Gamma(dtype, exact.args.k + 3);
      farthest = std::max(farthest, std::abs(got[i] - expected.values[i]) /
                                        (bounds[i] * rounding));
      bounds[i] *= 2 * 0x1p-11 + 0x1p-22 + rounding;
    }
    kernel_test::ExpectWithin(got, expected.values, bounds, dtype, "tf32");
    EXPECT_GT(farthest, 1) << "as near as float32 is";
  }
}

}  // namespace
}  // namespace crosshatch::internal
