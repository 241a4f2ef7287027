// SPDX-License-Identifier: Apache-2.0

/// \file
/// How products call the library: in one call, with an algorithm that is
/// selected once. tensor/kernels/tests/ tests the values.

#include "crosshatch/tensor/kernels/cuda/gemm.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>

#include "crosshatch/emulation/cuda_runtime.h"
#include "crosshatch/tensor/kernels/cuda/cuda_context.h"
#include "crosshatch/tensor/kernels/cuda/gemm_emulated.h"
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

// Makes the library lack algorithms for the scope.
class WithoutAlgorithms {
 public:
  explicit WithoutAlgorithms(bool (*lacks)(const GemmPlan&)) {
    SetPlansWithoutAlgorithm(lacks);
  }
  ~WithoutAlgorithms() { SetPlansWithoutAlgorithm(nullptr); }
};

void ExpectRight(Product& product, const std::string& what) {
  const reference::Sums expected = reference::MatMul(product.args);
  product.Run();
  Reals bounds = expected.magnitudes;
  for (Real& bound : bounds) {
    // An intermediate result is rounded to the dtype before a bias is added.
    bound *= kernel_test::Gamma(product.args.dtype, product.args.k + 4) +
             (product.args.bias == nullptr
                  ? 0
                  : reference::UnitRoundoff(product.args.out_dtype));
  }
  kernel_test::ExpectWithin(product.out.Read(), expected.values, bounds,
                            product.args.out_dtype, what);
}

TEST(CudaGemmTest, WithoutAnAlgorithmForABiasItIsAddedAfterwards) {
  const WithoutAlgorithms no_bias(
      [](const GemmPlan& plan) { return plan.bias_alignment != 0; });
  for (DType dtype : {kFloat32, kBFloat16, kFloat16}) {
    Product product(6, 5, 7, dtype, dtype);
    product.args.bias = product.bias.data();
    EXPECT_EQ(product.Run(), 2) << Name(dtype);
    ExpectRight(product, Name(dtype));
  }
}

TEST(CudaGemmTest, WithoutAnAlgorithmTilesOfAlignedCopiesAreMultiplied) {
  const WithoutAlgorithms only_even([](const GemmPlan& plan) {
    return plan.bias_alignment != 0 || plan.batch != 1 ||
           plan.left.leading % 16 != 0 || plan.right.leading % 16 != 0 ||
           plan.left.alignment < 16 || plan.workspace_bytes != 0;
  });
  for (DType dtype : kernel_test::kFloatDTypes) {
    for (const auto& [m, n, k] : {std::array<int64_t, 3>{1, 1, 1},
                                  {6, 5, 7},
                                  {70, 33, 37},
                                  {3, 90, 50}}) {
      for (double beta : {0.0, 1.0, 0.5}) {
        Product product(m, n, k, dtype, dtype);
        product.args.alpha = 1.5;
        product.args.beta = beta;
        if (dtype != kFloat64) product.args.bias = product.bias.data();
        ExpectRight(product, Name(dtype));
      }
    }
  }
  // A batch, of which the library would compute all matrices in one call.
  Product batch(12, 5, 7, kBFloat16, kFloat32);
  batch.args.m = 4;
  batch.args.batch = {1, {3}};
  batch.args.a.batch_strides[0] = 4 * 7;
  batch.args.out.batch_strides[0] = 4 * 5;
  ExpectRight(batch, "batch");
}

TEST(CudaGemmDeathTest, NamesAProductThatTheLibraryDoesNotHave) {
  const WithoutAlgorithms none([](const GemmPlan&) { return true; });
  Product product(6, 5, 7, kBFloat16, kFloat32);
  EXPECT_DEATH(product.Run(),
               "cuBLASLt has no algorithm for a product of bf16 to f32 "
               ".m, n, k. = .6, 5, 7., nor for tiles of");
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
TEST(CudaGemmTest, Tf32RoundsTheFactors) {
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
