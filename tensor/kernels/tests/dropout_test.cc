// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <string>
#include <vector>

#include "crosshatch/tensor/kernels/kernel_testutil.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using kernel_test::Kernels;
using kernel_test::LayoutKind;
using kernel_test::Operand;
using kernel_test::Random;
using kernel_test::Real;
using kernel_test::Reals;

constexpr uint64_t kKey = 0x0123456789ABCDEFu;
constexpr uint64_t kStream = 77;

// Compares with the numbers of the random kernel.
void Check(DType dtype, const std::vector<int64_t>& sizes,
           const std::vector<int64_t>& offsets,
           const std::vector<int64_t>& global, double p, LayoutKind layout) {
  Random random(5);
  Operand x(dtype, sizes, layout), out(dtype, sizes),
      uniform(DType::kFloat32, sizes);
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
  KernelContext& here = kernel_test::Context();
  Kernels().random(numbers, here);
  const std::string what = std::string("dropout of ") + Name(dtype);
  kernel_test::RunAllWays(
      {&out}, [&](KernelContext& context) { Kernels().dropout(args, context); },
      what);
  const Reals u = uniform.Read(), from = x.Read();
  Operand expected(dtype, sizes);
  Reals values;
  for (size_t i = 0; i < from.size(); ++i) {
    const bool kept = static_cast<double>(u[i]) >= p;
    const Real product = dtype == DType::kFloat64
                             ? from[i] * (1 / (1 - p))
                             : Real(static_cast<float>(from[i]) *
                                    static_cast<float>(1 / (1 - p)));
    values.push_back(kept ? product : 0);
  }
  expected.Set(values);
  EXPECT_EQ(out.Read(), expected.Read()) << what;
}

TEST(DropoutTest, DropsByTheElementsNumbers) {
  for (DType dtype : kernel_test::kFloatDTypes) {
    for (double p : {0.0, 0.1, 0.5, 0.875}) {
      for (LayoutKind layout : {LayoutKind::kContiguous,
                                LayoutKind::kTransposed, LayoutKind::kPadded}) {
        Check(dtype, {1300}, {0}, {1300}, p, layout);
        Check(dtype, {3, 5, 7}, {0, 0, 0}, {3, 5, 7}, p, layout);
        Check(dtype, {2, 3}, {1, 4}, {5, 9}, p, layout);
        Check(dtype, {4, 1}, {1, 4}, {5, 9}, p, layout);
        Check(dtype, {0, 3}, {5, 0}, {5, 3}, p, layout);
      }
    }
  }
}

TEST(DropoutTest, OfOneKeepsNothing) {
  Operand x(DType::kFloat32, {100}), out(DType::kFloat32, {100});
  Random random(5);
  x.Fill(random, 1, 3);
  DropoutArgs args;
  args.shape = x.shape();
  args.x = x.in();
  args.out = out.data();
  args.p = 1;
  args.global_sizes[0] = 100;
  KernelContext& context = kernel_test::Context();
  Kernels().dropout(args, context);
  for (Real value : out.Read()) EXPECT_EQ(value, 0);
}

}  // namespace
}  // namespace crosshatch
