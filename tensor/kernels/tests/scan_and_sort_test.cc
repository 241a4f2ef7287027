// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstdint>
#include <limits>
#include <sstream>
#include <vector>

#include "crosshatch/tensor/kernels/kernel_testutil.h"
#include "crosshatch/tensor/kernels/reference/reference.h"
#include "gtest/gtest.h"

namespace crosshatch::kernel_test {
namespace {

void TestCumSum(DType dtype, const std::vector<int64_t>& sizes, int dim,
                bool reverse, LayoutKind layout, LayoutKind out_layout) {
  Random random(sizes.size() * 31 + dim);
  Operand in(dtype, sizes, layout);
  in.Fill(random, dtype == kUInt16 ? 0 : -4, 4);
  const DType out_dtype = IsFloatingPoint(dtype) ? dtype : kInt64;
  Operand out(out_dtype, sizes, out_layout);
  CumSumArgs args;
  args.shape = in.shape();
  args.dim = dim;
  args.in = in.in();
  args.out = out.out();
  args.reverse = reverse;
  std::ostringstream what;
  what << "cumsum of " << Name(dtype) << " dim " << dim << " reverse "
       << reverse << " layout " << static_cast<int>(layout) << " [";
  for (int64_t size : sizes) what << size << " ";
  what << "]";

  const reference::Sums expected = reference::CumSum(args);
  RunAllWays(&KernelTable::cumsum, args, {&out}, what.str());
  Reals bounds;
  for (Real magnitude : expected.magnitudes) {
    // Computed in double, and 16-bit floats via f32.
    Real error = Gamma(kFloat64, sizes[dim]);
    if (SizeOf(dtype) == 2) error += Gamma(kFloat32, 1);
    bounds.push_back(IsFloatingPoint(dtype) ? error * magnitude : 0);
  }
  const Reals actual = out.Read();
  if (IsFloatingPoint(dtype)) {
    ExpectWithin(actual, expected.values, bounds, out_dtype, what.str());
  } else {
    EXPECT_EQ(actual, expected.values) << what.str();
  }
}

TEST(CumSumKernelTest, MatchesReference) {
  const std::vector<int64_t> shapes[] = {
      {1},    {7},       {300},     {5, 3},     {3, 0},     {0, 3},
      {1, 1}, {13, 129}, {129, 13}, {2, 70, 3}, {3, 1, 67}, {2, 3, 2, 5}};
  for (DType dtype : kAllDTypes) {
    for (const auto& sizes : shapes) {
      for (int dim = 0; dim < static_cast<int>(sizes.size()); ++dim) {
        for (LayoutKind layout :
             {LayoutKind::kContiguous, LayoutKind::kTransposed,
              LayoutKind::kPadded, LayoutKind::kBroadcastInner,
              LayoutKind::kBroadcastOuter}) {
          const bool reverse = dim % 2 == 1;
          TestCumSum(dtype, sizes, dim, reverse, layout,
                     LayoutKind::kContiguous);
          TestCumSum(dtype, sizes, dim, !reverse, layout, LayoutKind::kPadded);
        }
      }
    }
  }
}

TEST(CumSumKernelTest, CutsAmongThreads) {
  TestCumSum(kFloat32, {400, 300}, 0, false, LayoutKind::kContiguous,
             LayoutKind::kContiguous);
  TestCumSum(kFloat32, {300, 400}, 1, true, LayoutKind::kContiguous,
             LayoutKind::kContiguous);
}

TEST(CumSumKernelTest, WrapsIntegers) {
  Operand in(kInt64, {3});
  auto* x = static_cast<int64_t*>(in.data());
  x[0] = std::numeric_limits<int64_t>::max();
  x[1] = 1;
  x[2] = 1;
  Operand out(kInt64, {3});
  CumSumArgs args;
  args.shape = in.shape();
  args.in = in.in();
  args.out = out.out();
  RunKernel(&KernelTable::cumsum, args);
  EXPECT_EQ(static_cast<const int64_t*>(out.data())[2],
            std::numeric_limits<int64_t>::min() + 1);
}

constexpr Real kInf = std::numeric_limits<Real>::infinity();
constexpr Real kNaN = std::numeric_limits<Real>::quiet_NaN();

struct SortCase {
  int dim = 0;
  int64_t count = 0;
  bool descending = false;
  bool sorted = true;
  bool labels = false;
};

bool Same(const Reals& a, const Reals& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    const bool both_nan = std::isnan(a[i]) && std::isnan(b[i]);
    if (!both_nan &&
        (a[i] != b[i] || std::signbit(a[i]) != std::signbit(b[i]))) {
      return false;
    }
  }
  return true;
}

void TestSort(const Operand& in, const SortCase& c, LayoutKind out_layout) {
  std::vector<int64_t> taken = in.sizes();
  taken[c.dim] = c.count;
  Operand values(in.dtype(), taken, out_layout);
  Operand indices(kInt64, taken, out_layout);
  Operand labels(kInt64, in.sizes(), LayoutKind::kPadded);
  Reals names;
  for (int64_t i = 0; i < labels.numel(); ++i) names.push_back(1000 - i);
  labels.Set(names);
  SortArgs args;
  args.shape = in.shape();
  args.dim = c.dim;
  args.in = in.in();
  args.count = c.count;
  args.descending = c.descending;
  args.sorted = c.sorted;
  if (c.labels) args.labels = labels.in();
  args.values = values.out();
  args.indices = indices.out();
  Workspace workspace(Kernels().sort_workspace_bytes(args));
  args.workspace = workspace.data();
  std::ostringstream what;
  what << "sort of " << Name(in.dtype()) << " dim " << c.dim << " count "
       << c.count << " descending " << c.descending << " sorted " << c.sorted
       << " labels " << c.labels << " [";
  for (int64_t size : in.sizes()) what << size << " ";
  what << "]";

  reference::Sorted expected = reference::Sort(args);
  RunAllWays(&KernelTable::sort, args, {&values, &indices}, what.str());
  EXPECT_TRUE(Same(values.Read(), expected.values)) << what.str();
  Reals places;
  for (size_t i = 0; i < expected.indices.size(); ++i) {
    if (!c.labels) {
      places.push_back(expected.indices[i]);
      continue;
    }
    // The row-major index of the element in the input.
    int64_t inner = 1;
    for (size_t d = c.dim + 1; d < taken.size(); ++d) inner *= taken[d];
    const int64_t n = in.sizes()[c.dim];
    const auto at = static_cast<int64_t>(i);
    const int64_t outer = at / (inner * c.count);
    places.push_back(1000 -
                     ((outer * n + expected.indices[i]) * inner + at % inner));
  }
  EXPECT_EQ(indices.Read(), places) << what.str();
}

TEST(SortKernelTest, MatchesReference) {
  const std::vector<int64_t> shapes[] = {{1},    {9},     {5, 3},   {3, 0},
                                         {0, 3}, {2, 40}, {2, 7, 3}};
  for (DType dtype : kAllDTypes) {
    for (const auto& sizes : shapes) {
      for (LayoutKind layout :
           {LayoutKind::kContiguous, LayoutKind::kTransposed,
            LayoutKind::kPadded, LayoutKind::kBroadcastInner}) {
        Random random(sizes.size());
        Operand in(dtype, sizes, layout);
        // Few distinct values, so that many are equal.
        in.Fill(random, dtype == kUInt16 ? 0 : -3, 4);
        for (int dim = 0; dim < static_cast<int>(sizes.size()); ++dim) {
          const int64_t n = sizes[dim];
          for (int64_t count : {int64_t{0}, n / 2, n}) {
            for (bool descending : {false, true}) {
              const bool sorted = count != n / 2 || descending;
              TestSort(in, {dim, count, descending, sorted, descending},
                       LayoutKind::kContiguous);
              TestSort(in, {dim, count, descending, !sorted, !descending},
                       LayoutKind::kPadded);
            }
          }
        }
      }
    }
  }
}

TEST(SortKernelTest, OrdersNaNAndInfinities) {
  for (DType dtype : kFloatDTypes) {
    Operand in(dtype, {12});
    in.Set({1, kNaN, -0.0L, kInf, 0, -kInf, kNaN, -1, 0, -0.0L, 65000, 2e-7L});
    for (int64_t count : {1, 5, 12}) {
      TestSort(in, {0, count, false}, LayoutKind::kContiguous);
      TestSort(in, {0, count, true}, LayoutKind::kContiguous);
    }
  }
}

TEST(SortKernelTest, OrdersTheLimitsOfIntegers) {
  Operand in(kInt64, {4});
  auto* x = static_cast<int64_t*>(in.data());
  x[0] = std::numeric_limits<int64_t>::max();
  x[1] = 0;
  x[2] = std::numeric_limits<int64_t>::min();
  x[3] = -1;
  TestSort(in, {0, 4, false}, LayoutKind::kContiguous);
  TestSort(in, {0, 4, true}, LayoutKind::kContiguous);
}

TEST(SortKernelTest, CutsAmongThreads) {
  Random random(5);
  for (DType dtype : {kFloat32, kFloat64}) {
    Operand in(dtype, {100, 300});
    in.Fill(random, -3, 4);
    TestSort(in, {1, 300, false}, LayoutKind::kContiguous);
    TestSort(in, {0, 10, true}, LayoutKind::kContiguous);
  }
}

}  // namespace
}  // namespace crosshatch::kernel_test
