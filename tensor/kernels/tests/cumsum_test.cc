// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <limits>
#include <sstream>
#include <vector>

#include "crosshatch/tensor/kernels/kernel_testutil.h"
#include "crosshatch/tensor/kernels/reference/scan_and_sort.h"
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

void TestCumSum(DType dtype, const std::vector<int64_t>& sizes, int dim,
                bool reverse, LayoutKind layout, LayoutKind out_layout) {
  Random random(sizes.size() * 31 + dim);
  Operand in(dtype, sizes, layout);
  in.Fill(random, dtype == DType::kUInt16 ? 0 : -4, 4);
  const DType out_dtype = IsFloatingPoint(dtype) ? dtype : DType::kInt64;
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

  const reference::RunningSum expected = reference::CumSum(args);
  kernel_test::RunAllWays(
      {&out}, [&](KernelContext& context) { Kernels().cumsum(args, context); },
      what.str());
  Reals bounds;
  for (Real magnitude : expected.magnitudes) {
    // Computed in double, and 16-bit floats via f32.
    Real error = Gamma(DType::kFloat64, sizes[dim]);
    if (SizeOf(dtype) == 2) error += Gamma(DType::kFloat32, 1);
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
  for (DType dtype : kernel_test::kAllDTypes) {
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
  TestCumSum(DType::kFloat32, {400, 300}, 0, false, LayoutKind::kContiguous,
             LayoutKind::kContiguous);
  TestCumSum(DType::kFloat32, {300, 400}, 1, true, LayoutKind::kContiguous,
             LayoutKind::kContiguous);
}

TEST(CumSumKernelTest, WrapsIntegers) {
  Operand in(DType::kInt64, {3});
  auto* x = static_cast<int64_t*>(in.data());
  x[0] = std::numeric_limits<int64_t>::max();
  x[1] = 1;
  x[2] = 1;
  Operand out(DType::kInt64, {3});
  KernelContext& context = kernel_test::Context();
  CumSumArgs args;
  args.shape = in.shape();
  args.in = in.in();
  args.out = out.out();
  Kernels().cumsum(args, context);
  EXPECT_EQ(static_cast<const int64_t*>(out.data())[2],
            std::numeric_limits<int64_t>::min() + 1);
}

}  // namespace
}  // namespace crosshatch
