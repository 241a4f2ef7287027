// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <string>

#include "crosshatch/tensor/kernels/kernel_testutil.h"
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
using kernel_test::Workspace;

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
  for (DType dtype : kernel_test::kAllDTypes) {
    for (DType id_dtype : {DType::kInt32, DType::kInt64, DType::kUInt16}) {
      for (int64_t cols : {0, 1, 7, 64}) {
        constexpr int64_t kRows = 40, kVocabulary = 20, kFirst = 5, kHere = 9;
        Random random(3);
        const Operand ids = RandomIds(id_dtype, kRows, kVocabulary);
        Operand table(dtype, {kHere, cols + 1}), out(dtype, {kRows, cols + 2});
        table.Fill(random, 0, 50);
        const EmbeddingArgs args = {kRows,        cols,           kFirst,
                                    kHere,        ids.data(),     id_dtype,
                                    table.rows(), out.rows_out(), dtype};
        kernel_test::RunAllWays(
            {&out},
            [&](KernelContext& context) { Kernels().embedding(args, context); },
            "embedding");
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
  const Operand ids = RandomIds(DType::kInt64, rows, 20);
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
      rows,       cols,          first,       here,
      ids.data(), DType::kInt64, grad.rows(), {dtable.data(), cols},
      dtype,      out_dtype,     mode};
  Workspace workspace(Kernels().embedding_backward_workspace_bytes(args));
  args.workspace = workspace.data();
  const std::string what = std::string("embedding_backward of ") + Name(dtype);
  kernel_test::RunAllWays(
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
    for (DType dtype : kernel_test::kFloatDTypes) {
      TestBackward(dtype, dtype, 300, 7, 5, 9, mode);
      TestBackward(dtype, dtype, 300, 0, 5, 9, mode);
      TestBackward(dtype, dtype, 0, 7, 5, 9, mode);
      TestBackward(dtype, dtype, 30, 7, 5, 0, mode);
      TestBackward(dtype, dtype, 5, 1500, 0, 20, mode);
    }
    TestBackward(DType::kBFloat16, DType::kFloat32, 64, 130, 0, 20, mode);
  }
}

}  // namespace
}  // namespace crosshatch
