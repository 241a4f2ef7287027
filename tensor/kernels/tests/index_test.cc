// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <string>
#include <vector>

#include "crosshatch/tensor/kernels/kernel_testutil.h"
#include "gtest/gtest.h"

namespace crosshatch::kernel_test {
namespace {

Operand Indices(DType dtype, const std::vector<int64_t>& sizes, int64_t bound,
                LayoutKind layout) {
  Random random(7);
  Operand index(dtype, sizes, layout);
  Reals values;
  for (int64_t i = 0; i < index.numel(); ++i) {
    values.push_back(static_cast<Real>(random.Below(bound)));
  }
  index.Set(values);
  return index;
}

// Compares with the definition, element by element.
void TestGather(DType dtype, DType index_dtype,
                const std::vector<int64_t>& sizes, int dim, int64_t first,
                int64_t count, int64_t bound, LayoutKind index_layout,
                LayoutKind src_layout) {
  Random random(3);
  const Operand index = Indices(index_dtype, sizes, bound, index_layout);
  std::vector<int64_t> src_sizes = sizes;
  src_sizes[static_cast<size_t>(dim)] = count;
  Operand src(dtype, src_sizes, src_layout), out(dtype, sizes);
  src.Fill(random, 0, 50);
  GatherArgs args;
  args.shape = index.shape();
  args.at = {"gather", dim, first, count, bound};
  args.index = index.in();
  args.src = src.in();
  args.out = out.out();
  const std::string what = std::string("gather of ") + Name(dtype);
  RunAllWays(&KernelTable::gather, args, {&out}, what);
  const Reals places = index.Read(), from = src.Read(), actual = out.Read();
  int64_t inner = 1;
  for (size_t d = static_cast<size_t>(dim) + 1; d < sizes.size(); ++d) {
    inner *= sizes[d];
  }
  const int64_t length = sizes[static_cast<size_t>(dim)];
  for (int64_t i = 0; i < out.numel(); ++i) {
    const auto place =
        static_cast<int64_t>(places[static_cast<size_t>(i)]) - first;
    const int64_t outer = i / inner / length;
    const Real expected =
        place >= 0 && place < count
            ? from[static_cast<size_t>((outer * count + place) * inner +
                                       i % inner)]
            : 0;
    ASSERT_EQ(actual[static_cast<size_t>(i)], expected) << what << " at " << i;
  }
}

TEST(GatherTest, ReadsTheIndexedElements) {
  for (DType dtype : kAllDTypes) {
    for (DType index : {kInt32, kInt64, kUInt16}) {
      for (int dim : {0, 1, 2}) {
        TestGather(dtype, index, {3, 5, 7}, dim, 0, 6, 6,
                   LayoutKind::kContiguous, LayoutKind::kContiguous);
      }
    }
  }
}

TEST(GatherTest, TakesEveryLayoutAndSize) {
  for (LayoutKind index :
       {LayoutKind::kContiguous, LayoutKind::kTransposed, LayoutKind::kPadded,
        LayoutKind::kBroadcastInner, LayoutKind::kBroadcastOuter}) {
    for (LayoutKind src : {LayoutKind::kContiguous, LayoutKind::kTransposed,
                           LayoutKind::kPadded}) {
      for (const std::vector<int64_t>& sizes :
           {std::vector<int64_t>{4}, std::vector<int64_t>{1, 1},
            std::vector<int64_t>{3, 1300}, std::vector<int64_t>{40, 2, 31},
            std::vector<int64_t>{0, 3}, std::vector<int64_t>{3, 0}}) {
        for (int dim = 0; dim < static_cast<int>(sizes.size()); ++dim) {
          TestGather(kFloat32, kInt64, sizes, dim, 0, 11, 11, index, src);
        }
      }
    }
  }
}

TEST(GatherTest, GivesZerosForElementsOfOtherShards) {
  for (int64_t count : {0, 1, 4}) {
    TestGather(kBFloat16, kInt64, {5, 6}, 0, 3, count, 9,
               LayoutKind::kContiguous, LayoutKind::kContiguous);
    TestGather(kFloat32, kInt64, {5, 6}, 1, 3, count, 9,
               LayoutKind::kBroadcastOuter, LayoutKind::kPadded);
  }
}

TEST(GatherDeathTest, NamesAnIndexOutOfRange) {
  for (const Real wrong : {Real(-1), Real(5)}) {
    Operand index(kInt64, {2}), src(kFloat32, {5}), out(kFloat32, {2});
    index.Set({0, wrong});
    GatherArgs args;
    args.shape = index.shape();
    args.at = {"index_select", 0, 0, 5, 5};
    args.index = index.in();
    args.src = src.in();
    args.out = out.out();
    EXPECT_DEATH(RunKernel(&KernelTable::gather, args),
                 "index_select: index (-1|5) is out of range: dim 0 has 5 "
                 "elements");
  }
}

struct Scattered {
  DType from = kFloat32;
  DType to = kFloat32;
  std::vector<int64_t> sizes;
  int dim = 0;
  int64_t first = 0;
  int64_t count = 0;
  int64_t bound = 0;
  WriteMode mode = WriteMode::kOverwrite;
  LayoutKind layout = LayoutKind::kContiguous;
};

// Compares with the definition, element by element.
void TestScatter(const Scattered& c) {
  Random random(3);
  Operand index(kInt64, c.sizes, c.layout);
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
  RunAllWays(&KernelTable::scatter, args, {&out}, what);

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
  for (DType dtype : kAllDTypes) {
    for (int dim : {0, 1, 2}) {
      TestScatter({dtype, dtype, {3, 9, 7}, dim, 0, 5, 5});
    }
  }
}

TEST(ScatterTest, AddsUpInOrder) {
  for (DType dtype : {kFloat32, kFloat64, kInt32, kInt64}) {
    for (int dim : {0, 1, 2}) {
      TestScatter(
          {dtype, dtype, {3, 9, 7}, dim, 0, 5, 5, WriteMode::kAccumulate});
    }
  }
  for (DType dtype : {kBFloat16, kFloat16}) {
    TestScatter({dtype, kFloat32, {3, 9}, 1, 0, 5, 5, WriteMode::kAccumulate});
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
          TestScatter(
              {kFloat32, kFloat32, sizes, dim, 0, 11, 11, mode, layout});
        }
      }
    }
  }
}

TEST(ScatterTest, LeavesElementsOfOtherShards) {
  for (int64_t count : {0, 1, 4}) {
    for (WriteMode mode : {WriteMode::kOverwrite, WriteMode::kAccumulate}) {
      TestScatter({kFloat32, kFloat32, {8, 6}, 0, 3, count, 9, mode});
      TestScatter({kFloat32, kFloat32, {8, 6}, 1, 3, count, 9, mode});
    }
  }
}

TEST(ScatterDeathTest, NamesAnIndexOutOfRange) {
  Operand index(kInt64, {2}), src(kFloat32, {2}), out(kFloat32, {5});
  index.Set({0, 9});
  ScatterArgs args;
  args.shape = index.shape();
  args.at = {"scatter_add", 0, 0, 5, 5};
  args.index = index.in();
  args.src = src.in();
  args.out = out.out();
  EXPECT_DEATH(RunKernel(&KernelTable::scatter, args),
               "scatter_add: index 9 is out of range: dim 0 has 5 elements");
}

constexpr uint64_t kKey = 0x0123456789ABCDEFu;
constexpr uint64_t kStream = 77;

// Compares with the numbers of the random kernel.
void TestDropout(DType dtype, const std::vector<int64_t>& sizes,
                 const std::vector<int64_t>& offsets,
                 const std::vector<int64_t>& global, double p,
                 LayoutKind layout) {
  Random random(5);
  Operand x(dtype, sizes, layout), out(dtype, sizes), uniform(kFloat32, sizes);
  x.Fill(random, -3, 3);
  DropoutArgs args;
  args.shape = x.shape();
  args.x = x.in();
  args.out = out.data();
  args.p = p;
  args.key = kKey;
  args.stream = kStream;
  RandomArgs numbers;
  numbers.kind = RandomKind::kUniform;
  numbers.out = uniform.data();
  numbers.key = kKey;
  numbers.stream = kStream;
  numbers.box = x.shape();
  numbers.a = 0;
  numbers.b = 1;
  for (size_t d = 0; d < sizes.size(); ++d) {
    args.offsets[d] = numbers.offsets[d] = offsets[d];
    args.global_sizes[d] = numbers.global_sizes[d] = global[d];
  }
  RunKernel(&KernelTable::random, numbers);
  const std::string what = std::string("dropout of ") + Name(dtype);
  RunAllWays(&KernelTable::dropout, args, {&out}, what);
  const Reals u = uniform.Read(), from = x.Read();
  Operand expected(dtype, sizes);
  Reals values;
  for (size_t i = 0; i < from.size(); ++i) {
    const bool kept = static_cast<double>(u[i]) >= p;
    const Real product = dtype == kFloat64
                             ? from[i] * (1 / (1 - p))
                             : Real(static_cast<float>(from[i]) *
                                    static_cast<float>(1 / (1 - p)));
    values.push_back(kept ? product : 0);
  }
  expected.Set(values);
  EXPECT_EQ(out.Read(), expected.Read()) << what;
}

TEST(DropoutTest, DropsByTheElementsNumbers) {
  for (DType dtype : kFloatDTypes) {
    for (double p : {0.0, 0.1, 0.5, 0.875}) {
      for (LayoutKind layout :
           {LayoutKind::kContiguous, LayoutKind::kTransposed,
            LayoutKind::kPadded, LayoutKind::kAlignedRows}) {
        TestDropout(dtype, {1300}, {0}, {1300}, p, layout);
        TestDropout(dtype, {3, 5, 7}, {0, 0, 0}, {3, 5, 7}, p, layout);
        TestDropout(dtype, {2, 3}, {1, 4}, {5, 9}, p, layout);
        TestDropout(dtype, {4, 1}, {1, 4}, {5, 9}, p, layout);
        // Rows of vectors in memory, of any number in the whole.
        TestDropout(dtype, {3, 64}, {1, 4}, {5, 77}, p, layout);
        TestDropout(dtype, {0, 3}, {5, 0}, {5, 3}, p, layout);
      }
    }
  }
}

TEST(DropoutTest, OfOneKeepsNothing) {
  Operand x(kFloat32, {100}), out(kFloat32, {100});
  Random random(5);
  x.Fill(random, 1, 3);
  DropoutArgs args;
  args.shape = x.shape();
  args.x = x.in();
  args.out = out.data();
  args.p = 1;
  args.global_sizes[0] = 100;
  RunKernel(&KernelTable::dropout, args);
  for (Real value : out.Read()) EXPECT_EQ(value, 0);
}

// A complaint would end the test.
TEST(CheckIndexRangeTest, AcceptsWhatIsInRangeOrIgnored) {
  for (DType dtype : {kInt32, kInt64}) {
    Operand indices(dtype, {37});
    Reals values;
    for (int i = 0; i < 37; ++i) values.push_back(i % 2 == 0 ? i / 8 : -100);
    indices.Set(values);
    RunKernel(&KernelTable::check_index_range, {.op = "op",
                                                .index = "index",
                                                .named = "rows",
                                                .count = 37,
                                                .indices = indices.data(),
                                                .dtype = dtype,
                                                .bound = 5,
                                                .ignored = -100});
  }
}

}  // namespace
}  // namespace crosshatch::kernel_test
