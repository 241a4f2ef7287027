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
  LayoutKind layout = LayoutKind::kUnalignedRows;
};

void TestNorm(const NormCase& c) {
  Random random(static_cast<uint64_t>(c.rows * 1000 + c.cols));
  const std::vector<int64_t> sizes = {c.rows, c.cols};
  Operand x(c.dtype, sizes, c.layout), out(c.dtype, sizes, c.layout),
      grad(c.dtype, sizes, c.layout), dx(c.dtype, sizes, c.layout);
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
                           std::to_string(c.cols) + " layout " +
                           std::to_string(static_cast<int>(c.layout));

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
    const Reals values = x.ReadRow(r), g = grad.ReadRow(r);
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
    ExpectWithin(out.ReadRow(r), expected, bounds, c.dtype, what + " out");

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
    ExpectWithin(dx.ReadRow(r), expected_dx, bounds, c.dtype, what + " dx");
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

TEST(NormTest, RowsOfVectors) {
  for (bool centered : {false, true}) {
    for (const auto& [cols, layout] : kRowsCases) {
      for (DType dtype : kSixteenBitDTypes) {
        TestNorm({dtype, 2, cols, centered, DType::kFloat32,
                  WriteMode::kOverwrite, layout});
      }
    }
    // Adds more than 256 terms on each thread of a block.
    TestNorm({DType::kBFloat16, 1, 150'000, centered, DType::kFloat32,
              WriteMode::kOverwrite, LayoutKind::kContiguous});
    for (DType dtype : kFloatDTypes) {
      // Several pieces of rows.
      for (int64_t cols : {61, 64}) {
        TestNorm({dtype, 40, cols, centered, dtype, WriteMode::kAccumulate,
                  LayoutKind::kAlignedRows});
      }
    }
  }
}

// Gradients that are not wanted are not written, and do not change the others.
TEST(NormTest, BackwardWritesOnlyWhatIsWanted) {
  constexpr int64_t kRows = 20, kCols = 40;
  Random random(2);
  const std::vector<int64_t> sizes = {kRows, kCols};
  Operand x(kBFloat16, sizes), grad(kBFloat16, sizes);
  Operand mean(kFloat32, {kRows}), rstd(kFloat32, {kRows});
  Operand weight(kBFloat16, {kCols});
  for (Operand* operand : {&x, &grad, &mean, &rstd, &weight}) {
    operand->Fill(random, 0.5, 1);
  }
  std::vector<Bytes> all;
  for (unsigned wanted : {7u, 0u, 1u, 2u, 4u, 3u, 5u, 6u}) {
    for (bool centered : {false, true}) {
      Operand dx(kBFloat16, sizes), dweight(kFloat32, {kCols}),
          dbias(kFloat32, {kCols});
      LayerNormBackwardArgs layer;
      RmsNormBackwardArgs rms;
      const auto set = [&](auto& args) {
        args.rows = kRows;
        args.cols = kCols;
        args.grad = grad.rows();
        args.x = x.rows();
        args.weight = weight.data();
        args.rstd = rstd.data();
        args.dx = dx.rows_out();
        args.dweight = dweight.data();
        args.dtype = kBFloat16;
        args.dweight_dtype = kFloat32;
        args.want_dx = (wanted & 1u) != 0;
        args.want_dweight = (wanted & 2u) != 0;
      };
      set(layer);
      set(rms);
      layer.mean = mean.data();
      layer.dbias = dbias.data();
      layer.want_dbias = (wanted & 4u) != 0;
      Workspace workspace(
          centered ? Kernels().layer_norm_backward_workspace_bytes(layer)
                   : Kernels().rms_norm_backward_workspace_bytes(rms));
      layer.workspace = rms.workspace = workspace.data();
      kernel_test::Run([&](KernelContext& context) {
        if (centered) {
          Kernels().layer_norm_backward(layer, context);
        } else {
          Kernels().rms_norm_backward(rms, context);
        }
      });
      const Operand* const outputs[] = {&dx, &dweight, &dbias};
      for (size_t i = 0; i < 3; ++i) {
        const Bytes& bytes = outputs[i]->bytes();
        if (wanted == 7u) all.push_back(bytes);
        const bool is_wanted =
            (wanted >> i & 1u) != 0 && (centered || outputs[i] != &dbias);
        const Bytes untouched(bytes.size(), std::byte{0xFF});
        EXPECT_TRUE(bytes ==
                    (is_wanted ? all[centered ? 3 + i : i] : untouched))
            << "output " << i << ", wanted " << wanted << ", layer_norm "
            << centered;
      }
    }
  }
}

TEST(NormTest, NoRowsOverwriteWithZeros) {
  Operand dweight(DType::kFloat32, {4});
  RmsNormBackwardArgs args;
  args.cols = 4;
  args.dweight = dweight.data();
  EXPECT_EQ(Kernels().rms_norm_backward_workspace_bytes(args), 0);
  KernelContext& context = Context();
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
  KernelContext& context = Context();
  Kernels().rms_norm({5, 40, x.rows(), nullptr, plain.rows_out(), rstd.data(),
                      DType::kFloat32, kEps},
                     context);
  Kernels().rms_norm({5, 40, x.rows(), ones.data(), weighted.rows_out(),
                      rstd.data(), DType::kFloat32, kEps},
                     context);
  EXPECT_EQ(plain.Read(), weighted.Read());
}

/// \param largest of the magnitudes of the inputs
void TestSoftmax(DType dtype, int64_t rows, int64_t cols, bool log,
                 LayoutKind layout = LayoutKind::kUnalignedRows,
                 int64_t largest = 9) {
  Random random(static_cast<uint64_t>(cols));
  const std::vector<int64_t> sizes = {rows, cols};
  Operand x(dtype, sizes, layout), y(dtype, sizes, layout),
      grad(dtype, sizes, layout), dx(dtype, sizes, layout);
  x.Fill(random, static_cast<double>(-largest), static_cast<double>(largest));
  grad.Fill(random, -2, 2);
  const std::string what = std::string(log ? "log_" : "") + "softmax of " +
                           Name(dtype) + " " + std::to_string(rows) + " x " +
                           std::to_string(cols) + " layout " +
                           std::to_string(static_cast<int>(layout)) + " to " +
                           std::to_string(largest);
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
    const Reals values = x.ReadRow(r), actual = y.ReadRow(r),
                g = grad.ReadRow(r);
    const Reals expected = reference::Softmax(values, log);
    Reals bounds;
    for (size_t i = 0; i < expected.size(); ++i) {
      // x - max has a rounding error of at most that of 2 * largest, and so
      // does the log of the sum. A relative error of 60 roundings covers sum
      // and exponentials.
      const Real below_error = Gamma(dtype, 22 + 2 * largest);
      bounds.push_back(log ? sum_error + below_error
                           : (sum_error + below_error) * expected[i] +
                                 SmallestNormal(dtype));
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
                           (std::abs(g[i]) * (log ? 1 : p) + magnitude * p) +
                       magnitude * SmallestNormal(dtype));
    }
    ExpectWithin(dx.ReadRow(r), expected_dx, bounds, dtype, what + " backward");
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

TEST(SoftmaxTest, RowsOfVectors) {
  for (bool log : {false, true}) {
    for (const auto& [cols, layout] : kRowsCases) {
      for (DType dtype : kSixteenBitDTypes) {
        TestSoftmax(dtype, 2, cols, log, layout);
      }
    }
    for (DType dtype : kFloatDTypes) {
      TestSoftmax(dtype, 3, 61, log, LayoutKind::kAlignedRows);
    }
    // Exceeds a block's registers, and adds more than 256 terms on each thread.
    TestSoftmax(DType::kBFloat16, 1, 16'403, log, LayoutKind::kAlignedRows);
    TestSoftmax(DType::kBFloat16, 1, 150'000, log, LayoutKind::kContiguous);
  }
}

TEST(SoftmaxTest, OfLargeNumbers) {
  for (DType dtype : kFloatDTypes) {
    for (bool log : {false, true}) {
      for (LayoutKind layout :
           {LayoutKind::kContiguous, LayoutKind::kUnalignedRows}) {
        TestSoftmax(dtype, 3, 64, log, layout, 200);
        TestSoftmax(dtype, 2, 4096, log, layout, 200);
      }
    }
  }
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

void TestForward(DType dtype, DType id_dtype, int64_t rows, int64_t cols,
                 LayoutKind layout) {
  constexpr int64_t kVocabulary = 20, kFirst = 5, kHere = 9;
  Random random(3);
  const Operand ids = RandomIds(id_dtype, rows, kVocabulary);
  Operand table(dtype, {kHere, cols}, layout), out(dtype, {rows, cols}, layout);
  table.Fill(random, 0, 50);
  const EmbeddingArgs args = {rows,         cols,           kFirst,
                              kHere,        ids.data(),     id_dtype,
                              table.rows(), out.rows_out(), dtype};
  RunAllWays(
      {&out},
      [&](KernelContext& context) { Kernels().embedding(args, context); },
      "embedding");
  const Reals id = ids.Read();
  for (int64_t r = 0; r < rows; ++r) {
    const auto row = static_cast<int64_t>(id[static_cast<size_t>(r)]) - kFirst;
    EXPECT_EQ(out.ReadRow(r), row >= 0 && row < kHere
                                  ? table.ReadRow(row)
                                  : Reals(static_cast<size_t>(cols), 0))
        << Name(dtype) << " " << cols << " columns, layout "
        << static_cast<int>(layout) << ", row " << r;
  }
}

TEST(EmbeddingTest, GathersTheRowsThatAreHere) {
  for (DType dtype : kAllDTypes) {
    for (DType id_dtype : {DType::kInt32, DType::kInt64, DType::kUInt16}) {
      for (int64_t cols : {0, 1, 7, 64}) {
        TestForward(dtype, id_dtype, 40, cols, LayoutKind::kUnalignedRows);
      }
      TestForward(dtype, id_dtype, 40, 64, LayoutKind::kContiguous);
    }
  }
  for (const auto& [cols, layout] : kRowsCases) {
    for (DType dtype : kSixteenBitDTypes) {
      TestForward(dtype, DType::kInt64, 4, cols, layout);
    }
  }
}

void TestBackward(DType dtype, DType out_dtype, int64_t rows, int64_t cols,
                  int64_t first, int64_t here, WriteMode mode,
                  LayoutKind layout = LayoutKind::kUnalignedRows,
                  int64_t vocabulary = 20) {
  Random random(static_cast<uint64_t>(rows));
  const Operand ids = RandomIds(DType::kInt64, rows, vocabulary);
  Operand grad(dtype, {rows, cols}, layout),
      dtable(out_dtype, {here, cols}, layout);
  grad.Fill(random, -1, 1);
  if (mode == WriteMode::kAccumulate) dtable.Fill(random, -1, 1);
  Reals expected = dtable.Read();
  Reals magnitudes(expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    if (mode == WriteMode::kOverwrite) expected[i] = 0;
    magnitudes[i] = std::abs(expected[i]);
  }
  EmbeddingBackwardArgs args = {
      rows,       cols,          first,       here,
      ids.data(), DType::kInt64, grad.rows(), dtable.rows_out(),
      dtype,      out_dtype,     mode};
  Workspace workspace(Kernels().embedding_backward_workspace_bytes(args));
  args.workspace = workspace.data();
  const std::string what = std::string("embedding_backward of ") + Name(dtype);
  RunAllWays(
      {&dtable},
      [&](KernelContext& context) {
        Kernels().embedding_backward(args, context);
      },
      what);
  const Reals id = ids.Read(), g = grad.Read();
  for (int64_t r = 0; r < rows; ++r) {
    const auto row = static_cast<int64_t>(id[static_cast<size_t>(r)]) - first;
    if (row < 0 || row >= here) continue;
    for (int64_t c = 0; c < cols; ++c) {
      const Real value = g[static_cast<size_t>(r * cols + c)];
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
    TestBackward(DType::kBFloat16, DType::kFloat32, 64, 130, 0, 20, mode);
    for (const auto& [cols, layout] : kRowsCases) {
      for (DType dtype : kSixteenBitDTypes) {
        TestBackward(dtype, dtype, 4, cols, 0, 20, mode, layout);
      }
    }
    for (DType dtype : kFloatDTypes) {
      TestBackward(dtype, dtype, 70, 61, 0, 20, mode, LayoutKind::kAlignedRows);
    }
    // Rows of few ids, in several pieces.
    for (DType dtype : kFloatDTypes) {
      for (LayoutKind layout :
           {LayoutKind::kContiguous, LayoutKind::kUnalignedRows}) {
        for (int64_t rows : {31, 32, 33, 131}) {
          TestBackward(dtype, dtype, rows, 8, 0, 2, mode, layout, 1);
        }
      }
    }
    // More than 512 rows of one id.
    for (LayoutKind layout :
         {LayoutKind::kContiguous, LayoutKind::kUnalignedRows}) {
      TestBackward(DType::kBFloat16, DType::kFloat32, 2400, 8, 0, 20, mode,
                   layout);
    }
  }
}

}  // namespace
}  // namespace crosshatch::kernel_test
