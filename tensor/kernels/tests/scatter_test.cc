// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <string>
#include <vector>

#include "crosshatch/tensor/kernels/kernel_testutil.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using kernel_test::ExpectWithin;
using kernel_test::Gamma;
using kernel_test::Kernels;
using kernel_test::LayoutKind;
using kernel_test::Operand;
using kernel_test::Random;
using kernel_test::Real;
using kernel_test::Reals;

struct Scattered {
  DType from = DType::kFloat32;
  DType to = DType::kFloat32;
  std::vector<int64_t> sizes;
  int dim = 0;
  int64_t first = 0;
  int64_t count = 0;
  int64_t bound = 0;
  WriteMode mode = WriteMode::kOverwrite;
  LayoutKind layout = LayoutKind::kContiguous;
};

// Compares with the definition, element by element.
void Check(const Scattered& c) {
  Random random(3);
  Operand index(DType::kInt64, c.sizes, c.layout);
  Reals values;
  for (int64_t i = 0; i < index.numel(); ++i) {
    // Some indices are frequent.
    values.push_back(static_cast<Real>(
        random.Below(4) == 0 ? c.bound / 2 : random.Below(c.bound)));
  }
  index.Set(values);
  std::vector<int64_t> out_sizes = c.sizes;
  out_sizes[static_cast<size_t>(c.dim)] = c.count;
  const LayoutKind src_layout = c.layout == LayoutKind::kBroadcastInner
                                    ? LayoutKind::kContiguous
                                    : c.layout;
  Operand src(c.from, c.sizes, src_layout), out(c.to, out_sizes);
  src.Fill(random, -4, 50);
  out.Fill(random, -4, 50);
  Reals expected = out.Read();
  Reals bounds(expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    bounds[i] = std::abs(expected[i]);
  }
  ScatterArgs args;
  args.shape = index.shape();
  args.at = {"scatter", c.dim, c.first, c.count, c.bound};
  args.index = index.in();
  args.src = src.in();
  args.out = out.out();
  args.mode = c.mode;
  const std::string what = std::string("scatter of ") + Name(c.from);
  kernel_test::RunAllWays(
      {&out}, [&](KernelContext& context) { Kernels().scatter(args, context); },
      what);

  const Reals places = index.Read(), from = src.Read();
  int64_t inner = 1;
  for (size_t d = static_cast<size_t>(c.dim) + 1; d < c.sizes.size(); ++d) {
    inner *= c.sizes[d];
  }
  const int64_t length = c.sizes[static_cast<size_t>(c.dim)];
  // Row-major order has j ascending within each line.
  for (int64_t i = 0; i < index.numel(); ++i) {
    const auto place =
        static_cast<int64_t>(places[static_cast<size_t>(i)]) - c.first;
    if (place < 0 || place >= c.count) continue;
    const auto at = static_cast<size_t>(
        (i / inner / length * c.count + place) * inner + i % inner);
    const Real value = from[static_cast<size_t>(i)];
    if (c.mode == WriteMode::kOverwrite) {
      expected[at] = value;
      bounds[at] = 0;
    } else {
      expected[at] += value;
      bounds[at] += std::abs(value);
    }
  }
  for (Real& bound : bounds) {
    bound = c.mode == WriteMode::kOverwrite || !IsFloatingPoint(c.to)
                ? 0
                : bound * Gamma(c.to, length + 1);
  }
  ExpectWithin(out.Read(), expected, bounds, c.to, what);
}

TEST(ScatterTest, WritesTheLastOfEqualIndices) {
  for (DType dtype : kernel_test::kAllDTypes) {
    for (int dim : {0, 1, 2}) {
      Check({dtype, dtype, {3, 9, 7}, dim, 0, 5, 5});
    }
  }
}

TEST(ScatterTest, AddsUpInOrder) {
  for (DType dtype :
       {DType::kFloat32, DType::kFloat64, DType::kInt32, DType::kInt64}) {
    for (int dim : {0, 1, 2}) {
      Check({dtype, dtype, {3, 9, 7}, dim, 0, 5, 5, WriteMode::kAccumulate});
    }
  }
  for (DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    Check({dtype, DType::kFloat32, {3, 9}, 1, 0, 5, 5, WriteMode::kAccumulate});
  }
}

TEST(ScatterTest, TakesEveryLayoutAndSize) {
  for (LayoutKind layout : {LayoutKind::kContiguous, LayoutKind::kTransposed,
                            LayoutKind::kPadded, LayoutKind::kBroadcastInner}) {
    for (const std::vector<int64_t>& sizes :
         {std::vector<int64_t>{40}, std::vector<int64_t>{1, 1},
          std::vector<int64_t>{9, 700}, std::vector<int64_t>{40, 2, 31},
          std::vector<int64_t>{0, 3}, std::vector<int64_t>{3, 0}}) {
      for (int dim = 0; dim < static_cast<int>(sizes.size()); ++dim) {
        for (WriteMode mode : {WriteMode::kOverwrite, WriteMode::kAccumulate}) {
          Check({DType::kFloat32, DType::kFloat32, sizes, dim, 0, 11, 11, mode,
                 layout});
        }
      }
    }
  }
}

TEST(ScatterTest, LeavesWhatIsElsewhere) {
  for (int64_t count : {0, 1, 4}) {
    for (WriteMode mode : {WriteMode::kOverwrite, WriteMode::kAccumulate}) {
      Check({DType::kFloat32, DType::kFloat32, {8, 6}, 0, 3, count, 9, mode});
      Check({DType::kFloat32, DType::kFloat32, {8, 6}, 1, 3, count, 9, mode});
    }
  }
}

TEST(ScatterDeathTest, NamesAnIndexOutOfRange) {
  Operand index(DType::kInt64, {2}), src(DType::kFloat32, {2}),
      out(DType::kFloat32, {5});
  index.Set({0, 9});
  ScatterArgs args;
  args.shape = index.shape();
  args.at = {"scatter_add", 0, 0, 5, 5};
  args.index = index.in();
  args.src = src.in();
  args.out = out.out();
  EXPECT_DEATH(kernel_test::Run([&](KernelContext& context) {
                 Kernels().scatter(args, context);
               }),
               "scatter_add: index 9 is out of range: dim 0 has 5 elements");
}

}  // namespace
}  // namespace crosshatch
