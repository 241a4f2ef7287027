// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>
#include <sstream>

#include "crosshatch/tensor/kernels/kernel_testutil.h"
#include "crosshatch/tensor/kernels/reference/reference.h"
#include "gtest/gtest.h"

namespace crosshatch::kernel_test {
namespace {

int64_t CeilLog2(int64_t n) {
  int64_t log = 0;
  while ((int64_t{1} << log) < n) ++log;
  return log;
}

void TestReduce(ReduceKind kind, DType dtype, DType out_dtype,
                const std::vector<int64_t>& sizes, uint32_t reduced,
                LayoutKind layout, WriteMode mode = WriteMode::kOverwrite) {
  Random random(sizes.size() * 31 + reduced);
  Operand in(dtype, sizes, layout);
  const bool product = kind == ReduceKind::kProduct;
  const bool integer = !IsFloatingPoint(dtype);
  in.Fill(random, product ? (integer ? 1 : 0.95) : -4,
          product ? (integer ? 2 : 1.05) : 4);
  std::vector<int64_t> kept;
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (((reduced >> d) & 1u) == 0) kept.push_back(sizes[d]);
  }
  Operand out(out_dtype, kept, LayoutKind::kPadded);
  if (mode == WriteMode::kAccumulate) out.Fill(random, 0, 4);
  const Reals old = out.Read();
  ReduceArgs args;
  args.kind = kind;
  args.shape = in.shape();
  args.reduced = reduced;
  args.in = in.in();
  args.out = {out.data(), out_dtype};
  for (size_t d = 0, k = 0; d < sizes.size(); ++d) {
    if (((reduced >> d) & 1u) == 0) {
      args.out.strides[d] = out.stride(static_cast<int>(k++));
    }
  }
  args.mode = mode;
  std::ostringstream what;
  what << "reduce " << static_cast<int>(kind) << " of " << Name(dtype) << " to "
       << Name(out_dtype) << " mask " << reduced << " layout "
       << static_cast<int>(layout) << " [";
  for (int64_t size : sizes) what << size << " ";
  what << "]";

  reference::Reduction expected = reference::Reduce(args);
  const bool is_arg =
      kind == ReduceKind::kArgMax || kind == ReduceKind::kArgMin;
  if (is_arg && expected.terms == 0) return;
  RunAllWays(&KernelTable::reduce, args, {&out}, what.str());
  const DType compute =
      out_dtype == kFloat64 || dtype == kFloat64 ? kFloat64 : kFloat32;
  Reals bounds;
  for (size_t i = 0; i < expected.values.size(); ++i) {
    Real& value = expected.values[i];
    Real bound = 0;
    const Real sum_error = Gamma(compute, 39 + CeilLog2(expected.terms));
    switch (kind) {
      case ReduceKind::kSum:
        bound = sum_error * expected.magnitudes[i];
        break;
      case ReduceKind::kSumOfSquares:
        bound = (sum_error + Gamma(compute, 1)) * expected.magnitudes[i];
        break;
      case ReduceKind::kMean:
        bound = (sum_error + Gamma(compute, 2)) * expected.magnitudes[i] /
                static_cast<Real>(expected.terms);
        if (integer) value = std::trunc(value);
        break;
      case ReduceKind::kProduct:
        bound = Gamma(compute, expected.terms) * std::abs(value);
        break;
      default:
        break;
    }
    if (integer || std::isnan(value)) bound = 0;
    if (mode == WriteMode::kAccumulate) {
      value += old[i];
      bound += Gamma(compute, 1) * (std::abs(value) + bound);
    }
    bounds.push_back(bound);
  }
  ExpectWithin(out.Read(), expected.values, bounds, out_dtype, what.str());
}

constexpr ReduceKind kKinds[] = {
    ReduceKind::kSum,    ReduceKind::kMean,   ReduceKind::kProduct,
    ReduceKind::kMax,    ReduceKind::kMin,    ReduceKind::kSumOfSquares,
    ReduceKind::kArgMax, ReduceKind::kArgMin,
};

DType OutDType(ReduceKind kind, DType dtype) {
  return kind == ReduceKind::kArgMax || kind == ReduceKind::kArgMin ? kInt64
                                                                    : dtype;
}

TEST(ReduceTest, AllKindsMatchTheReference) {
  for (ReduceKind kind : kKinds) {
    for (DType dtype : kFloatDTypes) {
      for (int64_t n : {0, 1, 2, 3, 5, 7, 13, 31, 64, 127, 1025, 5000}) {
        TestReduce(kind, dtype, OutDType(kind, dtype), {n}, 1,
                   LayoutKind::kContiguous);
        TestReduce(kind, dtype, OutDType(kind, dtype), {n, 3}, 1,
                   LayoutKind::kContiguous);
        TestReduce(kind, dtype, OutDType(kind, dtype), {3, n}, 2,
                   LayoutKind::kContiguous);
      }
    }
  }
}

TEST(ReduceTest, RowsOfVectors) {
  for (ReduceKind kind : kKinds) {
    for (const auto& [cols, layout] : kRowsCases) {
      // A product of more numbers leaves float16's range.
      if (kind == ReduceKind::kProduct && cols > 64) continue;
      for (DType dtype : kSixteenBitDTypes) {
        TestReduce(kind, dtype,
                   kind == ReduceKind::kSumOfSquares ? DType::kFloat32
                                                     : OutDType(kind, dtype),
                   {2, cols}, 2, layout);
        TestReduce(kind, dtype, OutDType(kind, dtype), {3, 2, cols}, 5, layout);
      }
    }
  }
}

TEST(ReduceTest, AnyDimsAndStrides) {
  for (ReduceKind kind : kKinds) {
    for (DType dtype : {kFloat32, kBFloat16}) {
      for (const std::vector<int64_t>& sizes : AllOrFew<std::vector<int64_t>>(
               {{5, 7, 3},
                {2, 3, 5, 7},
                {13, 150},
                {40, 2, 33},
                {3, 0, 2},
                {2, 1, 4}},
               {{2, 3, 5, 7}, {13, 150}, {3, 0, 2}})) {
        for (uint32_t mask = 0; mask < (1u << sizes.size()); ++mask) {
          for (LayoutKind layout :
               {LayoutKind::kContiguous, LayoutKind::kTransposed,
                LayoutKind::kPadded, LayoutKind::kBroadcastInner}) {
            TestReduce(kind, dtype, OutDType(kind, dtype), sizes, mask, layout);
          }
        }
      }
    }
  }
}

TEST(ReduceTest, WiderOutputsAndAccumulation) {
  for (ReduceKind kind :
       {ReduceKind::kSum, ReduceKind::kMean, ReduceKind::kSumOfSquares}) {
    for (DType out : {kFloat32, kFloat64}) {
      for (WriteMode mode : {WriteMode::kOverwrite, WriteMode::kAccumulate}) {
        TestReduce(kind, kBFloat16, out, {70, 200}, 1, LayoutKind::kContiguous,
                   mode);
        TestReduce(kind, kFloat32, out, {70, 200}, 2, LayoutKind::kTransposed,
                   mode);
        TestReduce(kind, kFloat32, out, {70, 200}, 3, LayoutKind::kContiguous,
                   mode);
      }
    }
  }
}

TEST(ReduceTest, LargeInputsSplitAmongThreads) {
  TestReduce(ReduceKind::kSum, kFloat32, kFloat32, {300001}, 1,
             LayoutKind::kContiguous);
  TestReduce(ReduceKind::kSumOfSquares, kFloat32, kFloat64, {700, 401}, 3,
             LayoutKind::kPadded);
  TestReduce(ReduceKind::kSum, kFloat32, kFloat32, {1500, 301}, 1,
             LayoutKind::kContiguous);
  TestReduce(ReduceKind::kMax, kFloat32, kFloat32, {301, 1500}, 2,
             LayoutKind::kContiguous);
}

TEST(ReduceTest, Integers) {
  for (ReduceKind kind : kKinds) {
    for (DType dtype : {kInt32, kInt64}) {
      for (uint32_t mask = 0; mask < 4; ++mask) {
        TestReduce(kind, dtype, OutDType(kind, dtype), {40, 33}, mask,
                   LayoutKind::kContiguous);
      }
    }
  }
  // In pieces.
  for (ReduceKind kind : kKinds) {
    if (kind == ReduceKind::kProduct) continue;  // It would overflow.
    TestReduce(kind, kInt64, kInt64, {30011}, 1, LayoutKind::kContiguous);
  }
  TestReduce(ReduceKind::kProduct, kBool, kInt64, {30011}, 1,
             LayoutKind::kContiguous);
  TestReduce(ReduceKind::kSum, kBool, kInt64, {300, 7}, 1,
             LayoutKind::kTransposed);
  TestReduce(ReduceKind::kMax, kBool, kBool, {30, 7}, 2,
             LayoutKind::kContiguous);
}

TEST(ReduceTest, ExtremesOfNothingAreLimitsOfTheDType) {
  for (ReduceKind kind : {ReduceKind::kMax, ReduceKind::kMin}) {
    for (DType dtype : {kInt32, kInt64, kUInt16, kBool, kFloat32, kFloat64,
                        kFloat16, kBFloat16}) {
      for (int64_t outputs : {0, 1, 3, 9, 40}) {
        Operand in(dtype, {0, outputs});
        Operand out(dtype, {outputs});
        ReduceArgs args;
        args.kind = kind;
        args.shape = in.shape();
        args.reduced = 1;
        args.in = in.in();
        args.out = out.out();
        args.out.strides[1] = args.out.strides[0];
        RunAllWays(&KernelTable::reduce, args, {&out}, Name(dtype));
        // Infinity converts to the nearest limit, except for bool.
        const Real infinity = std::numeric_limits<Real>::infinity();
        Operand limit(dtype, {1});
        limit.Set({dtype == kBool             ? Real(kind == ReduceKind::kMin)
                   : kind == ReduceKind::kMax ? -infinity
                                              : infinity});
        for (Real value : out.Read()) {
          EXPECT_EQ(value, limit.Read()[0]) << Name(dtype);
        }
      }
    }
  }
}

TEST(ReduceTest, NanWins) {
  for (int64_t position : {0, 5, 40, 1500}) {
    Operand in(kFloat32, {2000});
    Reals values(2000, 1);
    values[static_cast<size_t>(position)] =
        std::numeric_limits<Real>::quiet_NaN();
    values[1999] = std::numeric_limits<Real>::infinity();
    in.Set(values);
    for (ReduceKind kind : {ReduceKind::kMax, ReduceKind::kMin}) {
      Operand out(kFloat32, {});
      ReduceArgs args;
      args.kind = kind;
      args.shape = in.shape();
      args.reduced = 1;
      args.in = in.in();
      args.out = out.out();
      RunKernel(&KernelTable::reduce, args);
      EXPECT_TRUE(std::isnan(out.Read()[0]));
      Operand index(kInt64, {});
      args.kind =
          kind == ReduceKind::kMax ? ReduceKind::kArgMax : ReduceKind::kArgMin;
      args.out = index.out();
      RunKernel(&KernelTable::reduce, args);
      EXPECT_EQ(index.Read()[0], static_cast<Real>(position));
    }
  }
}

}  // namespace
}  // namespace crosshatch::kernel_test
