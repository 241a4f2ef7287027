// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <string>

#include "crosshatch/tensor/kernels/kernel_testutil.h"
#include "crosshatch/tensor/kernels/reference/reference.h"
#include "gtest/gtest.h"

namespace crosshatch::kernel_test {
namespace {

constexpr int64_t kIgnore = 3;

struct Problem {
  /// \param largest of the magnitudes of the logits
  Problem(DType dtype, DType target_dtype, int64_t rows, int64_t cols,
          LayoutKind layout = LayoutKind::kUnalignedRows, int64_t largest = 8)
      : dtype(dtype),
        rows(rows),
        cols(cols),
        logits(dtype, {rows, cols}, layout),
        targets(target_dtype, {rows}),
        grad(StatisticsDType(dtype), {rows}) {
    Random random(static_cast<uint64_t>(rows * 7 + cols));
    const auto limit = static_cast<double>(largest);
    logits.Fill(random, -limit, limit);
    Reals classes;
    for (int64_t r = 0; r < rows; ++r) {
      classes.push_back(static_cast<Real>(random.Below(cols)));
    }
    targets.Set(classes);
    grad.Fill(random, -1, 1);
  }
  TargetsInput Targets() const {
    return {targets.data(), targets.dtype(), kIgnore};
  }

  DType dtype;
  int64_t rows, cols;
  Operand logits, targets, grad;
};

void TestCrossEntropy(DType dtype, DType target_dtype, int64_t rows,
                      int64_t cols,
                      LayoutKind layout = LayoutKind::kUnalignedRows,
                      int64_t largest = 8) {
  Problem p(dtype, target_dtype, rows, cols, layout, largest);
  const DType statistics = StatisticsDType(dtype);
  Operand loss(statistics, {rows}), logsumexp(statistics, {rows});
  Operand dlogits(dtype, {rows, cols}, layout);
  const CrossEntropyArgs forward = {rows,        cols,        p.logits.rows(),
                                    p.Targets(), loss.data(), logsumexp.data(),
                                    dtype};
  const CrossEntropyBackwardArgs backward = {rows,
                                             cols,
                                             0,
                                             p.logits.rows(),
                                             p.Targets(),
                                             logsumexp.data(),
                                             p.grad.data(),
                                             1,
                                             dlogits.rows_out(),
                                             dtype};
  const std::string what = std::string("cross_entropy of ") + Name(dtype) +
                           " " + std::to_string(rows) + " x " +
                           std::to_string(cols) + " layout " +
                           std::to_string(static_cast<int>(layout)) + " to " +
                           std::to_string(largest);
  RunAllWays(
      {&loss, &logsumexp, &dlogits},
      [&](KernelContext& context) {
        Kernels().cross_entropy(forward, context);
        Kernels().cross_entropy_backward(backward, context);
      },
      what);
  const Reals targets = p.targets.Read(), grads = p.grad.Read();
  Reals expected_loss, expected_lse, loss_bounds;
  // A sum of exponentials of numbers down to 2 * largest below their maximum.
  // The rounding of each difference adds to its error.
  const Real error = Gamma(dtype, 64 + 2 * largest);
  for (int64_t r = 0; r < rows; ++r) {
    const Reals x = p.logits.ReadRow(r);
    const auto target = static_cast<size_t>(targets[static_cast<size_t>(r)]);
    const bool ignored = target == kIgnore;
    const Real lse = reference::LogSumExp(x);
    expected_lse.push_back(lse);
    expected_loss.push_back(ignored ? 0 : lse - x[target]);
    loss_bounds.push_back(
        error + Gamma(dtype, 2) * (std::abs(lse) + static_cast<Real>(largest)));
    Reals dx, bounds;
    for (size_t c = 0; c < x.size(); ++c) {
      const Real probability = std::exp(x[c] - lse);
      const Real g = grads[static_cast<size_t>(r)];
      dx.push_back(ignored ? 0 : (probability - (c == target ? 1 : 0)) * g);
      bounds.push_back((2 * error + Gamma(dtype, 24 + 2 * largest)) *
                           probability * std::abs(g) +
                       Gamma(dtype, 3) * std::abs(dx.back()) +
                       SmallestNormal(dtype));
    }
    ExpectWithin(dlogits.ReadRow(r), dx, bounds, dtype, what + " dlogits");
  }
  ExpectWithin(loss.Read(), expected_loss, loss_bounds, statistics,
               what + " loss");
  ExpectWithin(logsumexp.Read(), expected_lse, loss_bounds, statistics,
               what + " logsumexp");
}

TEST(CrossEntropyTest, ForwardAndBackward) {
  for (DType dtype : kFloatDTypes) {
    for (int64_t cols : {1, 2, 3, 5, 7, 13, 31, 64, 127, 2500}) {
      TestCrossEntropy(dtype, DType::kInt64, 5, cols);
    }
    // Exceeds a block's registers.
    TestCrossEntropy(dtype, DType::kInt64, 2, 20000);
    TestCrossEntropy(dtype, DType::kInt32, 0, 5);
    TestCrossEntropy(dtype, DType::kUInt16, 300, 257);
  }
}

TEST(CrossEntropyTest, RowsOfVectors) {
  for (const auto& [cols, layout] : kRowsCases) {
    for (DType dtype : kSixteenBitDTypes) {
      TestCrossEntropy(dtype, DType::kInt64, 2, cols, layout);
    }
  }
  for (DType dtype : kFloatDTypes) {
    TestCrossEntropy(dtype, DType::kInt64, 5, 61, LayoutKind::kAlignedRows);
  }
}

// Rows that fit into a block's registers, and one that does not.
TEST(CrossEntropyTest, OfLargeLogits) {
  for (DType dtype : kFloatDTypes) {
    for (LayoutKind layout :
         {LayoutKind::kContiguous, LayoutKind::kUnalignedRows}) {
      TestCrossEntropy(dtype, DType::kInt64, 3, 64, layout, 200);
      TestCrossEntropy(dtype, DType::kInt64, 2, 4096, layout, 200);
    }
  }
  for (DType dtype : kSixteenBitDTypes) {
    TestCrossEntropy(dtype, DType::kInt64, 2, 16'403, LayoutKind::kAlignedRows,
                     200);
  }
}

// Adds more than 256 terms on each thread of a block.
TEST(CrossEntropyTest, OfManyClasses) {
  for (LayoutKind layout :
       {LayoutKind::kContiguous, LayoutKind::kUnalignedRows}) {
    TestCrossEntropy(DType::kBFloat16, DType::kInt64, 1, 150'000, layout);
  }
}

void TestShards(DType dtype, int64_t cols, int64_t cut, LayoutKind layout) {
  constexpr int64_t kRows = 9;
  Problem p(dtype, DType::kInt64, kRows, cols, layout);
  // The first and last classes of each piece.
  p.targets.Set(Reals{0, Real(cut - 1), Real(cut), Real(cut + 1),
                      Real(cols - 1), Real(kIgnore), 1, 2, Real(cols / 2)});
  const DType statistics = StatisticsDType(dtype);
  KernelContext& context = Context();
  Operand loss(statistics, {kRows}), logsumexp(statistics, {kRows});
  Kernels().cross_entropy({kRows, cols, p.logits.rows(), p.Targets(),
                           loss.data(), logsumexp.data(), dtype},
                          context);
  Operand whole(dtype, {kRows, cols}, layout),
      pieces(dtype, {kRows, cols}, layout);
  CrossEntropyBackwardArgs backward = {kRows,
                                       cols,
                                       0,
                                       p.logits.rows(),
                                       p.Targets(),
                                       logsumexp.data(),
                                       p.grad.data(),
                                       1,
                                       whole.rows_out(),
                                       dtype};
  Kernels().cross_entropy_backward(backward, context);

  Operand row_max(statistics, {kRows});
  ReduceArgs reduce;
  reduce.kind = ReduceKind::kMax;
  reduce.shape = {2, {kRows, cols}};
  reduce.reduced = 2;
  reduce.in = p.logits.in();
  reduce.out = row_max.out();
  Kernels().reduce(reduce, context);
  Reals sums(kRows), picks(kRows);
  for (const auto& [first, last] :
       {std::pair<int64_t, int64_t>{0, cut}, {cut, cut}, {cut, cols}}) {
    Operand sum(statistics, {kRows}), picked(statistics, {kRows});
    const auto at = [first = first, dtype](void* data) {
      return static_cast<char*>(data) + first * SizeOf(dtype);
    };
    const RowsInput logits = {at(p.logits.data()), p.logits.stride(0)};
    Kernels().cross_entropy_shard(
        {kRows, last - first, first, logits, p.Targets(), row_max.data(),
         sum.data(), picked.data(), dtype},
        context);
    const Reals s = sum.Read(), k = picked.Read();
    for (size_t r = 0; r < kRows; ++r) {
      sums[r] += s[r];
      picks[r] += k[r];
    }
    backward.cols = last - first;
    backward.first = first;
    backward.logits = logits;
    backward.dlogits = {at(pieces.data()), pieces.stride(0)};
    Kernels().cross_entropy_backward(backward, context);
  }
  const Reals targets = p.targets.Read(), max = row_max.Read();
  Reals expected, bounds;
  for (size_t r = 0; r < kRows; ++r) {
    const bool ignored = targets[r] == kIgnore;
    expected.push_back(ignored ? 0 : std::log(sums[r]) + max[r] - picks[r]);
    bounds.push_back(Gamma(dtype, 120));
  }
  ExpectWithin(loss.Read(), expected, bounds, statistics, "shards");
  for (int64_t r = 0; r < kRows; ++r) {
    EXPECT_EQ(pieces.ReadRow(r), whole.ReadRow(r)) << r;
  }
}

TEST(CrossEntropyTest, ShardsOfClassesAddUp) {
  for (DType dtype : kFloatDTypes) {
    TestShards(dtype, 50, 17, LayoutKind::kUnalignedRows);
    TestShards(dtype, 61, 16, LayoutKind::kAlignedRows);
    TestShards(dtype, 4096, 1024, LayoutKind::kContiguous);
  }
  // Adds more than 256 terms on each thread.
  TestShards(DType::kBFloat16, 150'000, 149'000, LayoutKind::kContiguous);
}

TEST(CrossEntropyTest, BackwardInPlaceWithOneGradientForAllRows) {
  Problem p(DType::kBFloat16, DType::kInt64, 7, 1100);
  Operand lse(DType::kFloat32, {7}), loss(DType::kFloat32, {7});
  Operand apart(DType::kBFloat16, {7, 1100}, LayoutKind::kUnalignedRows);
  KernelContext& context = Context();
  Kernels().cross_entropy(
      {7, 1100, p.logits.rows(), p.Targets(), loss.data(), lse.data(), p.dtype},
      context);
  CrossEntropyBackwardArgs args = {
      7,          1100,          0, p.logits.rows(),  p.Targets(),
      lse.data(), p.grad.data(), 0, apart.rows_out(), p.dtype};
  Kernels().cross_entropy_backward(args, context);
  p.grad.Set(Reals(7, p.grad.Read()[0]));
  Operand with_equal(DType::kBFloat16, {7, 1100}, LayoutKind::kUnalignedRows);
  args.grad_stride = 1;
  args.dlogits = with_equal.rows_out();
  Kernels().cross_entropy_backward(args, context);
  EXPECT_EQ(apart.Read(), with_equal.Read());
  args.grad_stride = 0;
  args.dlogits = p.logits.rows_out();
  Kernels().cross_entropy_backward(args, context);
  for (int64_t r = 0; r < 7; ++r) {
    EXPECT_EQ(p.logits.ReadRow(r), apart.ReadRow(r)) << r;
  }
}

TEST(CrossEntropyDeathTest, TargetOutOfRange) {
  Problem p(DType::kFloat32, DType::kInt64, 1, 5);
  p.targets.Set({5});
  Operand lse(DType::kFloat32, {1}), loss(DType::kFloat32, {1});
  const CrossEntropyArgs args = {
      1, 5, p.logits.rows(), p.Targets(), loss.data(), lse.data(), p.dtype};
  EXPECT_DEATH(kernel_test::Run([&](KernelContext& context) {
                 Kernels().cross_entropy(args, context);
               }),
               "target 5 of row 0 among 5 classes, and no ignore_index");
}

}  // namespace
}  // namespace crosshatch::kernel_test
