// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <string>

#include "crosshatch/tensor/kernels/kernel_testutil.h"
#include "crosshatch/tensor/kernels/reference/reference.h"
#include "gtest/gtest.h"

namespace crosshatch::kernel_test {
namespace {

constexpr double kEps = 1e-5;

struct NormCase {
  DType dtype;
  int64_t rows, cols;
  bool centered;  // layer_norm, else rms_norm.
  DType dweight_dtype;
  WriteMode mode = WriteMode::kOverwrite;
};

void TestNorm(const NormCase& c) {
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
    RunAllWays(
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
    RunAllWays(
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
    const Reals values = x.ReadRow(r, c.cols), g = grad.ReadRow(r, c.cols);
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
    ExpectWithin(out.ReadRow(r, c.cols), expected, bounds, c.dtype,
                 what + " out");

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
    ExpectWithin(dx.ReadRow(r, c.cols), expected_dx, bounds, c.dtype,
                 what + " dx");
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
    for (DType dtype : kFloatDTypes) {
      for (int64_t cols : AllOrFew<int64_t>(
               {1, 2, 3, 5, 7, 13, 31, 64, 127, 1500}, {1, 7, 64, 1500})) {
        TestNorm({dtype, 3, cols, centered, dtype});
      }
      // Exceeds a block's registers.
      TestNorm({dtype, 2, 9000, centered, dtype});
      TestNorm({dtype, 0, 7, centered, dtype});
      TestNorm({dtype, 3, 0, centered, dtype});
    }
    for (DType dtype : AllOrFew({kFloat32, kFloat64, kBFloat16, kFloat16},
                                {kFloat32, kBFloat16})) {
      TestNorm({dtype, 600, 130, centered, dtype, WriteMode::kAccumulate});
    }
    // More rows per block than threads.
    TestNorm({kFloat32, 17000, 3, centered, kFloat32});
    TestNorm({kBFloat16, 70, 40, centered, kFloat32, WriteMode::kAccumulate});
  }
}

TEST(NormTest, NoRowsOverwriteWithZeros) {
  Operand dweight(kFloat32, {4});
  RmsNormBackwardArgs args;
  args.cols = 4;
  args.dweight = dweight.data();
  EXPECT_EQ(Kernels().rms_norm_backward_workspace_bytes(args), 0);
  RunKernel(&KernelTable::rms_norm_backward, args);
  EXPECT_EQ(dweight.Read(), Reals(4, 0));
}

TEST(NormTest, WithoutWeight) {
  Random random(2);
  Operand x(kFloat32, {5, 40}), plain(kFloat32, {5, 40}),
      weighted(kFloat32, {5, 40}), rstd(kFloat32, {5}), ones(kFloat32, {40});
  x.Fill(random, -1, 1);
  ones.Set(Reals(40, 1));
  RunKernel(&KernelTable::rms_norm, {5, 40, x.rows(), nullptr, plain.rows_out(),
                                     rstd.data(), kFloat32, kEps});
  RunKernel(&KernelTable::rms_norm,
            {5, 40, x.rows(), ones.data(), weighted.rows_out(), rstd.data(),
             kFloat32, kEps});
  EXPECT_EQ(plain.Read(), weighted.Read());
}

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
  const SoftmaxArgs forward = {rows, cols, x.rows(), y.rows_out(), dtype, log};
  const SoftmaxBackwardArgs backward = {
      rows, cols, y.rows(), grad.rows(), dx.rows_out(), dtype, log};
  RunAllWays(
      {&y, &dx},
      [&](KernelContext& context) {
        Kernels().softmax(forward, context);
        Kernels().softmax_backward(backward, context);
      },
      what);
  const Real sum_error = Gamma(dtype, 60);
  for (int64_t r = 0; r < rows; ++r) {
    const Reals values = x.ReadRow(r, cols), actual = y.ReadRow(r, cols),
                g = grad.ReadRow(r, cols);
    const Reals expected = reference::Softmax(values, log);
    Reals bounds;
    for (size_t i = 0; i < expected.size(); ++i) {
      // x - max has a rounding error of at most that of 18, and so does the log
      // of the sum. A relative error of 60 roundings covers sum and
      // exponentials.
      bounds.push_back(log ? sum_error + Gamma(dtype, 40)
                           : (sum_error + Gamma(dtype, 40)) * expected[i] +
                                 reference::Smallest(ComputeDType(dtype)));
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
    ExpectWithin(dx.ReadRow(r, cols), expected_dx, bounds, dtype,
                 what + " backward");
  }
}

TEST(SoftmaxTest, ForwardAndBackward) {
  for (DType dtype : kFloatDTypes) {
    for (bool log : {false, true}) {
      for (int64_t cols : {0, 1, 2, 3, 5, 7, 13, 31, 64, 127, 2500}) {
        TestSoftmax(dtype, 3, cols, log);
      }
      TestSoftmax(dtype, 0, 5, log);
      TestSoftmax(dtype, 200, 257, log);
    }
  }
}

constexpr int64_t kIgnore = 3;

struct Problem {
  Problem(DType dtype, DType target_dtype, int64_t rows, int64_t cols)
      : dtype(dtype),
        rows(rows),
        cols(cols),
        logits(dtype, {rows, cols + 2}),
        targets(target_dtype, {rows}),
        grad(StatisticsDType(dtype), {rows}) {
    Random random(static_cast<uint64_t>(rows * 7 + cols));
    logits.Fill(random, -8, 8);
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
                      int64_t cols) {
  Problem p(dtype, target_dtype, rows, cols);
  const DType statistics = StatisticsDType(dtype);
  Operand loss(statistics, {rows}), logsumexp(statistics, {rows});
  Operand dlogits(dtype, {rows, cols + 2});
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
                           std::to_string(cols);
  RunAllWays(
      {&loss, &logsumexp, &dlogits},
      [&](KernelContext& context) {
        Kernels().cross_entropy(forward, context);
        Kernels().cross_entropy_backward(backward, context);
      },
      what);
  const Reals targets = p.targets.Read(), grads = p.grad.Read();
  Reals expected_loss, expected_lse, loss_bounds;
  // A sum of exponentials of numbers down to 16 below their maximum. The
  // rounding of each difference adds to its error.
  const Real error = Gamma(dtype, 80);
  for (int64_t r = 0; r < rows; ++r) {
    const Reals x = p.logits.ReadRow(r, cols);
    const auto target = static_cast<size_t>(targets[static_cast<size_t>(r)]);
    const bool ignored = target == kIgnore;
    const Real lse = reference::LogSumExp(x);
    expected_lse.push_back(lse);
    expected_loss.push_back(ignored ? 0 : lse - x[target]);
    loss_bounds.push_back(error + Gamma(dtype, 2) * (std::abs(lse) + 8));
    Reals dx, bounds;
    for (size_t c = 0; c < x.size(); ++c) {
      const Real probability = std::exp(x[c] - lse);
      const Real g = grads[static_cast<size_t>(r)];
      dx.push_back(ignored ? 0 : (probability - (c == target ? 1 : 0)) * g);
      bounds.push_back((2 * error + Gamma(dtype, 40)) * probability *
                           std::abs(g) +
                       Gamma(dtype, 3) * std::abs(dx.back()));
    }
    ExpectWithin(dlogits.ReadRow(r, cols), dx, bounds, dtype,
                 what + " dlogits");
  }
  ExpectWithin(loss.Read(), expected_loss, loss_bounds, statistics,
               what + " loss");
  ExpectWithin(logsumexp.Read(), expected_lse, loss_bounds, statistics,
               what + " logsumexp");
}

TEST(CrossEntropyTest, ForwardAndBackward) {
  for (DType dtype : kFloatDTypes) {
    for (int64_t cols : {1, 2, 3, 5, 7, 13, 31, 64, 127, 2500}) {
      TestCrossEntropy(dtype, kInt64, 5, cols);
    }
    // Exceeds a block's registers.
    TestCrossEntropy(dtype, kInt64, 2, 20000);
    TestCrossEntropy(dtype, kInt32, 0, 5);
    TestCrossEntropy(dtype, kUInt16, 300, 257);
  }
}

TEST(CrossEntropyTest, ShardsOfClassesAddUp) {
  for (DType dtype : {kFloat32, kFloat64, kBFloat16}) {
    constexpr int64_t kRows = 9, kCols = 50;
    Problem p(dtype, kInt64, kRows, kCols);
    const DType statistics = StatisticsDType(dtype);
    Operand loss(statistics, {kRows}), logsumexp(statistics, {kRows});
    RunKernel(&KernelTable::cross_entropy,
              {kRows, kCols, p.logits.rows(), p.Targets(), loss.data(),
               logsumexp.data(), dtype});
    Operand whole(dtype, {kRows, kCols + 2}), pieces(dtype, {kRows, kCols + 2});
    CrossEntropyBackwardArgs backward = {kRows,
                                         kCols,
                                         0,
                                         p.logits.rows(),
                                         p.Targets(),
                                         logsumexp.data(),
                                         p.grad.data(),
                                         1,
                                         whole.rows_out(),
                                         dtype};
    RunKernel(&KernelTable::cross_entropy_backward, backward);

    Operand row_max(statistics, {kRows});
    ReduceArgs reduce;
    reduce.kind = ReduceKind::kMax;
    reduce.shape = {2, {kRows, kCols}};
    reduce.reduced = 2;
    reduce.in = p.logits.in();
    reduce.out = row_max.out();
    RunKernel(&KernelTable::reduce, reduce);
    Reals sums(kRows), picks(kRows);
    for (const auto& [first, last] :
         {std::pair<int64_t, int64_t>{0, 17}, {17, 17}, {17, 50}}) {
      Operand sum(statistics, {kRows}), picked(statistics, {kRows});
      const auto at = [first = first, dtype](void* data) {
        return static_cast<char*>(data) + first * SizeOf(dtype);
      };
      const RowsInput logits = {at(p.logits.data()), p.logits.stride(0)};
      RunKernel(&KernelTable::cross_entropy_shard,
                {kRows, last - first, first, logits, p.Targets(),
                 row_max.data(), sum.data(), picked.data(), dtype});
      const Reals s = sum.Read(), k = picked.Read();
      for (size_t r = 0; r < kRows; ++r) {
        sums[r] += s[r];
        picks[r] += k[r];
      }
      backward.cols = last - first;
      backward.first = first;
      backward.logits = logits;
      backward.dlogits = {at(pieces.data()), pieces.stride(0)};
      RunKernel(&KernelTable::cross_entropy_backward, backward);
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
      EXPECT_EQ(pieces.ReadRow(r, kCols), whole.ReadRow(r, kCols)) << r;
    }
  }
}

TEST(CrossEntropyTest, BackwardInPlaceWithOneGradientForAllRows) {
  Problem p(kBFloat16, kInt64, 7, 1100);
  Operand lse(kFloat32, {7}), loss(kFloat32, {7});
  Operand apart(kBFloat16, {7, 1102});
  RunKernel(&KernelTable::cross_entropy, {7, 1100, p.logits.rows(), p.Targets(),
                                          loss.data(), lse.data(), p.dtype});
  CrossEntropyBackwardArgs args = {
      7,          1100,          0, p.logits.rows(),  p.Targets(),
      lse.data(), p.grad.data(), 0, apart.rows_out(), p.dtype};
  RunKernel(&KernelTable::cross_entropy_backward, args);
  args.dlogits = p.logits.rows_out();
  RunKernel(&KernelTable::cross_entropy_backward, args);
  for (int64_t r = 0; r < 7; ++r) {
    EXPECT_EQ(p.logits.ReadRow(r, 1100), apart.ReadRow(r, 1100)) << r;
  }
}

TEST(CrossEntropyDeathTest, TargetOutOfRange) {
  Problem p(kFloat32, kInt64, 1, 5);
  p.targets.Set({5});
  Operand lse(kFloat32, {1}), loss(kFloat32, {1});
  const CrossEntropyArgs args = {
      1, 5, p.logits.rows(), p.Targets(), loss.data(), lse.data(), p.dtype};
  EXPECT_DEATH(RunKernel(&KernelTable::cross_entropy, args),
               "target 5 of row 0 among 5 classes, and no ignore_index");
}

Operand RandomIds(DType dtype, int64_t rows, int64_t vocabulary) {
  Random random(static_cast<uint64_t>(rows + vocabulary));
  Operand ids(dtype, {rows});
  Reals values;
  for (int64_t r = 0; r < rows; ++r) {
    // Some ids are frequent.
    values.push_back(
        static_cast<Real>(random.Below(4) == 0 ? 1 : random.Below(vocabulary)));
  }
  ids.Set(values);
  return ids;
}

TEST(EmbeddingTest, GathersTheRowsThatAreHere) {
  for (DType dtype : kAllDTypes) {
    for (DType id_dtype : {kInt32, kInt64, kUInt16}) {
      for (int64_t cols : {0, 1, 7, 64}) {
        constexpr int64_t kRows = 40, kVocabulary = 20, kFirst = 5, kHere = 9;
        Random random(3);
        const Operand ids = RandomIds(id_dtype, kRows, kVocabulary);
        Operand table(dtype, {kHere, cols + 1}), out(dtype, {kRows, cols + 2});
        table.Fill(random, 0, 50);
        const EmbeddingArgs args = {kRows,        cols,           kFirst,
                                    kHere,        ids.data(),     id_dtype,
                                    table.rows(), out.rows_out(), dtype};
        RunAllWays(&KernelTable::embedding, args, {&out}, "embedding");
        const Reals id = ids.Read(), rows = table.Read(), actual = out.Read();
        for (int64_t r = 0; r < kRows; ++r) {
          const auto row =
              static_cast<int64_t>(id[static_cast<size_t>(r)]) - kFirst;
          for (int64_t c = 0; c < cols; ++c) {
            const Real expected =
                row >= 0 && row < kHere
                    ? rows[static_cast<size_t>(row * (cols + 1) + c)]
                    : 0;
            EXPECT_EQ(actual[static_cast<size_t>(r * (cols + 2) + c)],
                      expected);
          }
        }
      }
    }
  }
}

void TestBackward(DType dtype, DType out_dtype, int64_t rows, int64_t cols,
                  int64_t first, int64_t here, WriteMode mode) {
  Random random(static_cast<uint64_t>(rows));
  const Operand ids = RandomIds(kInt64, rows, 20);
  Operand grad(dtype, {rows, cols + 1}), dtable(out_dtype, {here, cols});
  grad.Fill(random, -1, 1);
  if (mode == WriteMode::kAccumulate) dtable.Fill(random, -1, 1);
  Reals expected = dtable.Read();
  Reals magnitudes(expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    if (mode == WriteMode::kOverwrite) expected[i] = 0;
    magnitudes[i] = std::abs(expected[i]);
  }
  EmbeddingBackwardArgs args = {
      rows,       cols,      first,       here,
      ids.data(), kInt64,    grad.rows(), {dtable.data(), cols},
      dtype,      out_dtype, mode};
  Workspace workspace(Kernels().embedding_backward_workspace_bytes(args));
  args.workspace = workspace.data();
  const std::string what = std::string("embedding_backward of ") + Name(dtype);
  RunAllWays(&KernelTable::embedding_backward, args, {&dtable}, what);
  const Reals id = ids.Read(), g = grad.Read();
  for (int64_t r = 0; r < rows; ++r) {
    const auto row = static_cast<int64_t>(id[static_cast<size_t>(r)]) - first;
    if (row < 0 || row >= here) continue;
    for (int64_t c = 0; c < cols; ++c) {
      const Real value = g[static_cast<size_t>(r * (cols + 1) + c)];
      expected[static_cast<size_t>(row * cols + c)] += value;
      magnitudes[static_cast<size_t>(row * cols + c)] += std::abs(value);
    }
  }
  for (Real& magnitude : magnitudes) magnitude *= Gamma(dtype, rows + 1);
  ExpectWithin(dtable.Read(), expected, magnitudes, out_dtype, what);
}

TEST(EmbeddingTest, BackwardAddsUpInOrder) {
  for (WriteMode mode : {WriteMode::kOverwrite, WriteMode::kAccumulate}) {
    for (DType dtype : kFloatDTypes) {
      TestBackward(dtype, dtype, 300, 7, 5, 9, mode);
      TestBackward(dtype, dtype, 300, 0, 5, 9, mode);
      TestBackward(dtype, dtype, 0, 7, 5, 9, mode);
      TestBackward(dtype, dtype, 30, 7, 5, 0, mode);
      TestBackward(dtype, dtype, 5, 1500, 0, 20, mode);
    }
    TestBackward(kBFloat16, kFloat32, 64, 130, 0, 20, mode);
  }
}

}  // namespace
}  // namespace crosshatch::kernel_test
