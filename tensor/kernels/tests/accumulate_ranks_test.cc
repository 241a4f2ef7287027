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

void TestAccumulate(ReduceOp op, DType dtype, DType out_dtype, int ranks,
                    int64_t count, double scale) {
  Random random(static_cast<uint64_t>(count + ranks));
  std::vector<Operand> sources;
  std::vector<const void*> pointers;
  for (int r = 0; r < ranks; ++r) {
    sources.emplace_back(dtype, std::vector<int64_t>{count});
    sources.back().Fill(random, 1, 3);
  }
  for (const Operand& source : sources) pointers.push_back(source.data());
  Operand out(out_dtype, {count});
  const AccumulateRanksArgs args = {
      op, pointers.data(), ranks, out.data(), count, dtype, out_dtype, scale};
  const std::string what = std::string("accumulate_ranks of ") + Name(dtype);
  kernel_test::RunAllWays(
      {&out},
      [&](KernelContext& context) {
        Kernels().accumulate_ranks(args, context);
      },
      what);
  Reals expected = sources[0].Read();
  for (int r = 1; r < ranks; ++r) {
    const Reals next = sources[static_cast<size_t>(r)].Read();
    for (size_t i = 0; i < next.size(); ++i) {
      switch (op) {
        case ReduceOp::kSum:
        case ReduceOp::kAvg:
          expected[i] += next[i];
          break;
        case ReduceOp::kProduct:
          expected[i] *= next[i];
          break;
        case ReduceOp::kMin:
          expected[i] = std::min(expected[i], next[i]);
          break;
        case ReduceOp::kMax:
          expected[i] = std::max(expected[i], next[i]);
          break;
      }
    }
  }
  Reals bounds;
  for (Real& value : expected) {
    if (op == ReduceOp::kAvg) value /= ranks;
    value *= scale;
    if (!IsFloatingPoint(dtype)) value = std::trunc(value);
    bounds.push_back(IsFloatingPoint(dtype) &&
                             (op < ReduceOp::kMin || scale != 1)
                         ? Gamma(dtype, ranks + 2) * std::abs(value)
                         : Real(0));
  }
  ExpectWithin(out.Read(), expected, bounds, out_dtype, what);
}

TEST(AccumulateRanksTest, AllOps) {
  for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kProduct,
                      ReduceOp::kMin, ReduceOp::kMax}) {
    for (int64_t count : {0, 1, 2, 3, 5, 7, 13, 31, 64, 127, 70001}) {
      for (int ranks : {1, 2, 3, 7}) {
        if (count > 1000 && ranks != 3) continue;
        for (DType dtype : kernel_test::kFloatDTypes) {
          TestAccumulate(op, dtype, dtype, ranks, count, 1);
          TestAccumulate(op, dtype, dtype, ranks, count, 0.3);
        }
        TestAccumulate(op, DType::kBFloat16, DType::kFloat32, ranks, count, 1);
        TestAccumulate(op, DType::kInt32, DType::kInt32, ranks, count, 1);
        TestAccumulate(op, DType::kInt64, DType::kInt64, ranks, count, 1);
      }
    }
  }
}

// Parts of matrices as sources and out. The gaps between runs of out must stay
// unchanged.
void TestRuns(DType dtype, int ranks, int64_t runs, int64_t count) {
  constexpr int64_t kGap = 5;
  Random random(3);
  std::vector<Operand> sources;
  std::vector<const void*> pointers;
  std::vector<int64_t> strides;
  for (int r = 0; r < ranks; ++r) {
    // The second source has no gaps.
    strides.push_back(r == 1 ? count : count + 4 * r + 8);
    sources.emplace_back(dtype, std::vector<int64_t>{runs, strides.back()});
    sources.back().Fill(random, 1, 3);
  }
  for (const Operand& source : sources) pointers.push_back(source.data());
  Operand out(dtype, {runs, count + kGap}),
      expected(dtype, {runs, count + kGap});
  out.Fill(random, 1, 3);
  expected.set_bytes(out.bytes());
  AccumulateRanksArgs args = {
      ReduceOp::kSum, pointers.data(), ranks,       out.data(),
      count,          dtype,           dtype,       1,
      runs,           strides.data(),  count + kGap};
  kernel_test::RunAllWays(
      {&out},
      [&](KernelContext& context) {
        Kernels().accumulate_ranks(args, context);
      },
      "accumulate_ranks of runs");
  args.runs = 1;
  const auto move_on = [&](const void* data, int64_t elems) {
    return static_cast<const std::byte*>(data) + elems * SizeOf(dtype);
  };
  for (int64_t run = 0; run < runs; ++run) {
    std::vector<const void*> of_run;
    for (size_t r = 0; r < pointers.size(); ++r) {
      of_run.push_back(move_on(pointers[r], run * strides[r]));
    }
    args.sources = of_run.data();
    args.out =
        const_cast<std::byte*>(move_on(expected.data(), run * (count + kGap)));
    kernel_test::Run([&](KernelContext& context) {
      Kernels().accumulate_ranks(args, context);
    });
  }
  EXPECT_EQ(out.Read(), expected.Read())
      << Name(dtype) << ", " << ranks << " ranks, " << runs << " runs of "
      << count;
}

TEST(AccumulateRanksTest, RunsThatLieEvenly) {
  for (DType dtype : {kFloat32, kFloat64, kBFloat16, kFloat16, kInt32}) {
    for (int64_t runs : {1, 2, 3, 40}) {
      for (int64_t count : {1, 3, 8, 67}) TestRuns(dtype, 3, runs, count);
    }
    TestRuns(dtype, 300, 3, 7);
  }
}

TEST(AccumulateRanksTest, MoreRanksThanAKernelMayTakeAtOnce) {
  for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMax}) {
    for (int ranks : {256, 257, 600}) {
      for (DType dtype : kernel_test::kFloatDTypes) {
        TestAccumulate(op, dtype, dtype, ranks, 37, 0.3);
      }
      TestAccumulate(op, DType::kBFloat16, DType::kFloat32, ranks, 37, 1);
      if (op == ReduceOp::kAvg) continue;
      TestAccumulate(op, DType::kInt32, DType::kInt32, ranks, 37, 1);
    }
  }
}

TEST(AccumulateRanksTest, OutMayBeASource) {
  Random random(1);
  Operand a(DType::kFloat32, {5000}), b(DType::kFloat32, {5000}),
      apart(DType::kFloat32, {5000});
  a.Fill(random, -1, 1);
  b.Fill(random, -1, 1);
  const void* sources[] = {a.data(), b.data()};
  AccumulateRanksArgs args = {ReduceOp::kSum, sources, 2, apart.data(), 5000};
  KernelContext& context = kernel_test::Context();
  Kernels().accumulate_ranks(args, context);
  args.out = b.data();
  Kernels().accumulate_ranks(args, context);
  EXPECT_EQ(b.Read(), apart.Read());
}

}  // namespace
}  // namespace crosshatch
