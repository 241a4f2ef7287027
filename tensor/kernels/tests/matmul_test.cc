// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <sstream>

#include "crosshatch/tensor/kernels/kernel_testutil.h"
#include "crosshatch/tensor/kernels/reference/reference.h"
#include "gtest/gtest.h"

namespace crosshatch::kernel_test {
namespace {

struct Case {
  int64_t m, n, k;
  std::vector<int64_t> batch;
  DType dtype = kFloat32;
  DType out_dtype = kFloat32;
  LayoutKind a = LayoutKind::kContiguous;
  LayoutKind b = LayoutKind::kContiguous;
  LayoutKind out = LayoutKind::kContiguous;
  double alpha = 1;
  double beta = 0;
  bool bias = false;
};

std::vector<int64_t> With(std::vector<int64_t> batch, int64_t rows,
                          int64_t cols) {
  batch.push_back(rows);
  batch.push_back(cols);
  return batch;
}

void TestMatMul(const Case& c) {
  Random random(static_cast<uint64_t>(c.m * 10007 + c.n * 101 + c.k));
  Operand a(c.dtype, With(c.batch, c.m, c.k), c.a);
  Operand b(c.dtype, With(c.batch, c.k, c.n), c.b);
  Operand out(c.out_dtype, With(c.batch, c.m, c.n), c.out);
  a.Fill(random, -2, 2);
  b.Fill(random, -2, 2);
  // With beta == 0 out stays NaN, which must not propagate.
  if (c.beta != 0) out.Fill(random, -2, 2);
  Operand bias(c.out_dtype, {c.n});
  bias.Fill(random, -2, 2);
  MatMulArgs args;
  args.m = c.m;
  args.n = c.n;
  args.k = c.k;
  args.batch = ShapeOf(c.batch);
  const int nb = args.batch.ndim;
  args.a = {a.data(), a.stride(nb), a.stride(nb + 1)};
  args.b = {b.data(), b.stride(nb), b.stride(nb + 1)};
  args.out = {out.data(), out.stride(nb), out.stride(nb + 1)};
  for (int d = 0; d < nb; ++d) {
    args.a.batch_strides[d] = a.stride(d);
    args.b.batch_strides[d] = b.stride(d);
    args.out.batch_strides[d] = out.stride(d);
  }
  args.dtype = c.dtype;
  args.out_dtype = c.out_dtype;
  args.alpha = c.alpha;
  args.beta = c.beta;
  if (c.bias) args.bias = bias.data();
  Workspace workspace(Kernels().matmul_workspace_bytes(args));
  args.workspace = workspace.data();
  const reference::Sums expected = reference::MatMul(args);
  std::ostringstream what;
  what << "matmul (" << c.m << ", " << c.k << ") by (" << c.k << ", " << c.n
       << ") of " << Name(c.dtype) << " to " << Name(c.out_dtype) << " batch "
       << args.batch.ndim << " layouts " << static_cast<int>(c.a)
       << static_cast<int>(c.b) << static_cast<int>(c.out) << " alpha "
       << c.alpha << " beta " << c.beta << (c.bias ? " with a bias" : "");
  RunAllWays(&KernelTable::matmul, args, {&out}, what.str());
  Reals bounds = expected.magnitudes;
  for (auto& bound : bounds) bound *= Gamma(c.dtype, c.k + 4);
  if (c.bias && SizeOf(c.out_dtype) == 2) {
    // The old output may be rounded first.
    for (size_t i = 0; i < bounds.size(); ++i) {
      bounds[i] +=
          reference::UnitRoundoff(c.out_dtype) * expected.magnitudes[i];
    }
  }
  ExpectWithin(reference::ReadOut(args), expected.values, bounds, c.out_dtype,
               what.str());
}

TEST(MatMulTest, AllSizes) {
  for (DType dtype : {kFloat32, kFloat64}) {
    for (int64_t m : {0, 1, 2, 5, 31, 64, 127}) {
      for (int64_t n : {0, 1, 3, 7, 64, 127}) {
        for (int64_t k : {0, 1, 2, 13, 64}) {
          TestMatMul({m, n, k, {}, dtype, dtype});
        }
      }
    }
  }
}

TEST(MatMulTest, AllLayoutsAlphaAndBeta) {
  for (DType dtype : kFloatDTypes) {
    for (LayoutKind a : {LayoutKind::kContiguous, LayoutKind::kTransposed,
                         LayoutKind::kPadded, LayoutKind::kBroadcastInner}) {
      for (LayoutKind b : {LayoutKind::kContiguous, LayoutKind::kTransposed,
                           LayoutKind::kPadded}) {
        for (LayoutKind out : {LayoutKind::kContiguous, LayoutKind::kTransposed,
                               LayoutKind::kPadded}) {
          for (double alpha : {1.0, 0.5}) {
            for (double beta : {0.0, 1.0, -0.75}) {
              TestMatMul({13, 7, 5, {}, dtype, dtype, a, b, out, alpha, beta});
              TestMatMul({1, 7, 5, {2}, dtype, dtype, a, b, out, alpha, beta});
              TestMatMul({7, 1, 0, {2}, dtype, dtype, a, b, out, alpha, beta});
            }
          }
        }
      }
    }
  }
}

TEST(MatMulTest, SixteenBitToFloat) {
  for (DType dtype : {kBFloat16, kFloat16}) {
    for (double beta : {0.0, 1.0, 2.0}) {
      TestMatMul({31,
                  64,
                  127,
                  {},
                  dtype,
                  kFloat32,
                  LayoutKind::kContiguous,
                  LayoutKind::kTransposed,
                  LayoutKind::kContiguous,
                  1,
                  beta});
    }
  }
}

TEST(MatMulTest, Biases) {
  for (DType dtype : kFloatDTypes) {
    for (const std::vector<int64_t>& batch :
         {std::vector<int64_t>{}, {3}, {2, 5}, {0}}) {
      for (LayoutKind out : {LayoutKind::kContiguous, LayoutKind::kTransposed,
                             LayoutKind::kPadded}) {
        for (double beta : {0.0, 1.0}) {
          for (int64_t k : {0, 13}) {
            TestMatMul({5, 7, k, batch, dtype, dtype, LayoutKind::kContiguous,
                        LayoutKind::kTransposed, out, 0.5, beta, true});
          }
        }
      }
    }
    TestMatMul({1,
                1,
                3,
                {},
                dtype,
                kFloat64 == dtype ? dtype : kFloat32,
                LayoutKind::kContiguous,
                LayoutKind::kContiguous,
                LayoutKind::kContiguous,
                1,
                0,
                true});
  }
}

TEST(MatMulTest, Batches) {
  for (DType dtype : kFloatDTypes) {
    for (const std::vector<int64_t>& batch :
         {std::vector<int64_t>{3}, {2, 5}, {2, 1, 3}, {0}, {4, 0}}) {
      TestMatMul({5, 7, 13, batch, dtype, dtype});
      TestMatMul({5, 7, 13, batch, dtype, dtype, LayoutKind::kTransposed,
                  LayoutKind::kPadded, LayoutKind::kTransposed});
      TestMatMul({5, 7, 13, batch, dtype, dtype, LayoutKind::kContiguous,
                  LayoutKind::kContiguous, LayoutKind::kContiguous, 1, 1});
    }
  }
}

TEST(MatMulTest, SharedMatrixOfABatch) {
  Random random(4);
  Operand a(kFloat32, {6, 40, 24}), b(kFloat32, {24, 32});
  a.Fill(random, -1, 1);
  b.Fill(random, -1, 1);
  Operand batched(kFloat32, {6, 40, 32}), tall(kFloat32, {240, 32});
  MatMulArgs args;
  args.m = 40;
  args.n = 32;
  args.k = 24;
  args.batch = {1, {6}};
  args.a = {a.data(), 24, 1, {40 * 24}};
  args.b = {b.data(), 32, 1, {0}};
  args.out = {batched.data(), 32, 1, {40 * 32}};
  KernelContext& context = Context();
  Workspace workspace(Kernels().matmul_workspace_bytes(args));
  args.workspace = workspace.data();
  Kernels().matmul(args, context);
  args.batch = {};
  args.m = 240;
  args.out.data = tall.data();
  RunKernel(&KernelTable::matmul, args);
  EXPECT_EQ(batched.Read(), tall.Read());
}

TEST(MatMulTest, LargeEnoughForManyPieces) {
  TestMatMul({300, 260, 200, {}});
  TestMatMul({260,
              300,
              129,
              {},
              kFloat32,
              kFloat32,
              LayoutKind::kTransposed,
              LayoutKind::kTransposed,
              LayoutKind::kTransposed,
              1,
              1});
  TestMatMul({1100,
              130,
              64,
              {},
              kBFloat16,
              kBFloat16,
              LayoutKind::kContiguous,
              LayoutKind::kTransposed});
  TestMatMul({70, 5, 20000, {}, kBFloat16, kFloat32});
}

}  // namespace
}  // namespace crosshatch::kernel_test
