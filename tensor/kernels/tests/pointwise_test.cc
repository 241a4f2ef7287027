// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>
#include <sstream>
#include <string>

#include "crosshatch/tensor/kernels/kernel_testutil.h"
#include "crosshatch/tensor/kernels/reference/reference.h"
#include "gtest/gtest.h"

namespace crosshatch::kernel_test {
namespace {

constexpr Real kInf = std::numeric_limits<Real>::infinity();
constexpr Real kNaN = std::numeric_limits<Real>::quiet_NaN();

std::string Describe(const char* op, int index, DType dtype,
                     const std::vector<int64_t>& sizes, LayoutKind a,
                     LayoutKind out) {
  std::ostringstream text;
  text << op << " " << index << " of " << Name(dtype) << " [";
  for (int64_t size : sizes) text << size << " ";
  text << "] layouts " << static_cast<int>(a) << ", " << static_cast<int>(out);
  return text.str();
}

// Returns the error bound of a result in the compute type.
Real UnaryBound(UnaryOp op, DType dtype, Real a, Real expected) {
  switch (op) {
    case UnaryOp::kExp:
    case UnaryOp::kLog:
    case UnaryOp::kTanh:
    case UnaryOp::kSigmoid:
    case UnaryOp::kSilu:
    case UnaryOp::kErf:
    case UnaryOp::kPowScalar:
      return Gamma(dtype, 16) * std::abs(expected) +
             reference::Smallest(ComputeDType(dtype));
    case UnaryOp::kGelu:
      // The sigmoid's argument has an error of a few roundings, and its value
      // that times the argument.
      return Gamma(dtype, 16) * std::abs(expected) *
                 (1 + std::abs(reference::GeluArgument(a))) +
             reference::Smallest(ComputeDType(dtype));
    case UnaryOp::kGeluExact:
      // The probability has an absolute error of a few roundings of 1.
      return Gamma(dtype, 16) * std::abs(a) +
             reference::Smallest(ComputeDType(dtype));
    case UnaryOp::kAddScalar:
    case UnaryOp::kScalarMinus:
    case UnaryOp::kMulScalar:
      // The scalar is rounded to the compute type, too.
      return Gamma(dtype, 2) * (std::abs(expected) + std::abs(a) + 1);
    default:
      return Gamma(dtype, 3) * std::abs(expected);
  }
}

Real BinaryBound(BinaryOp op, DType dtype, Real a, Real b, Real expected) {
  const Real s = reference::Sigmoid(b);
  switch (op) {
    case BinaryOp::kAdd:
    case BinaryOp::kSub:
      return Gamma(dtype, 3) * (std::abs(a) + 2 * std::abs(b));
    case BinaryOp::kPow:
      return Gamma(dtype, 16) * std::abs(expected);
    case BinaryOp::kSiluBackward:
      return Gamma(dtype, 40) * std::abs(a) * s * (1 + std::abs(b)) +
             reference::Smallest(ComputeDType(dtype));
    case BinaryOp::kGeluBackward: {
      const Real argument = reference::GeluArgument(b);
      const Real g = reference::Sigmoid(argument);
      return Gamma(dtype, 40) * std::abs(a) * g *
                 (1 + std::abs(b) * (2 + b * b)) * (1 + std::abs(argument)) +
             reference::Smallest(ComputeDType(dtype));
    }
    case BinaryOp::kGeluExactBackward:
      return Gamma(dtype, 40) * std::abs(a) * (1 + std::abs(b)) +
             reference::Smallest(ComputeDType(dtype));
    case BinaryOp::kTanhBackward:
    case BinaryOp::kSigmoidBackward:
      return Gamma(dtype, 4) * std::abs(a) * (1 + b * b);
    default:
      return Gamma(dtype, 2) * std::abs(expected);
  }
}

const std::vector<std::vector<int64_t>>& Shapes() {
  static const auto* const kShapes = new std::vector<std::vector<int64_t>>{
      {},       {0},       {1},       {2},         {3},
      {5},      {7},       {13},      {31},        {64},
      {127},    {2, 3},    {3, 0, 2}, {5, 7, 3},   {1, 13, 1},
      {2, 300}, {3, 1030}, {130, 9},  {2, 3, 5, 7}};
  return *kShapes;
}

constexpr LayoutKind kOutLayouts[] = {
    LayoutKind::kContiguous, LayoutKind::kTransposed, LayoutKind::kPadded,
    LayoutKind::kAlignedRows};
constexpr LayoutKind kInLayouts[] = {
    LayoutKind::kContiguous,     LayoutKind::kTransposed,
    LayoutKind::kPadded,         LayoutKind::kBroadcastInner,
    LayoutKind::kBroadcastOuter, LayoutKind::kAlignedRows};

void TestUnary(UnaryOp op, DType dtype, const std::vector<int64_t>& sizes,
               LayoutKind a_layout, LayoutKind out_layout, WriteMode mode) {
  Random random(static_cast<uint64_t>(op) * 100 + sizes.size());
  const bool positive = op == UnaryOp::kLog || op == UnaryOp::kSqrt ||
                        op == UnaryOp::kRsqrt || op == UnaryOp::kPowScalar ||
                        op == UnaryOp::kReciprocal || dtype == kUInt16;
  Operand a(dtype, sizes, a_layout);
  a.Fill(random, positive ? 0.125 : -6, 6);
  Operand out(dtype, sizes, out_layout);
  if (mode == WriteMode::kAccumulate) out.Fill(random, 0, 4);
  const Reals old = out.Read();
  UnaryArgs args;
  args.op = op;
  args.shape = a.shape();
  args.a = a.in();
  args.out = out.out();
  args.scalar = IsFloatingPoint(dtype) ? 1.7 : 3;
  args.mode = mode;
  const std::string what = Describe("unary", static_cast<int>(op), dtype, sizes,
                                    a_layout, out_layout);
  RunAllWays(&KernelTable::unary, args, {&out}, what);
  Reals expected, bounds;
  const Reals values = a.Read();
  for (size_t i = 0; i < values.size(); ++i) {
    Real value = reference::Unary(op, values[i], args.scalar);
    Real bound = IsFloatingPoint(dtype)
                     ? UnaryBound(op, dtype, values[i], value)
                     : Real(0);
    if (mode == WriteMode::kAccumulate) {
      value += old[i];
      bound += Gamma(dtype, 1) * (std::abs(value) + bound);
    }
    expected.push_back(value);
    bounds.push_back(bound);
  }
  ExpectWithin(out.Read(), expected, bounds, dtype, what);
}

TEST(PointwiseTest, UnaryOpsMatchTheReference) {
  for (int op = 0; op < static_cast<int>(UnaryOp::kNot); ++op) {
    for (DType dtype : kFloatDTypes) {
      for (const auto& sizes : Shapes()) {
        TestUnary(static_cast<UnaryOp>(op), dtype, sizes,
                  LayoutKind::kContiguous, LayoutKind::kContiguous,
                  WriteMode::kOverwrite);
      }
    }
  }
}

TEST(PointwiseTest, UnaryOpsOfIntegersAreExact) {
  for (int op = 0; op < static_cast<int>(UnaryOp::kExp); ++op) {
    for (DType dtype : {kInt32, kInt64}) {
      TestUnary(static_cast<UnaryOp>(op), dtype, {5, 7, 3},
                LayoutKind::kTransposed, LayoutKind::kPadded,
                WriteMode::kOverwrite);
    }
  }
  TestUnary(UnaryOp::kNot, kBool, {130, 9}, LayoutKind::kContiguous,
            LayoutKind::kTransposed, WriteMode::kOverwrite);
}

TEST(PointwiseTest, UnaryOpsTakeAnyStrides) {
  for (DType dtype : kFloatDTypes) {
    for (const auto& sizes : Shapes()) {
      for (LayoutKind in : kInLayouts) {
        for (LayoutKind out : kOutLayouts) {
          for (WriteMode mode :
               {WriteMode::kOverwrite, WriteMode::kAccumulate}) {
            TestUnary(UnaryOp::kSilu, dtype, sizes, in, out, mode);
          }
        }
      }
    }
  }
}

// Includes values near the limits of exp and similar functions.
TEST(PointwiseTest, SpecialValues) {
  const Reals values = {0,    -0.0L, kInf,  -kInf, kNaN,   1,      -1,
                        88.5, 88.8,  -87.5, -90,   -103.9, -104.5, 1e-30L,
                        3e38, -3e38, 709,   710,   -745,   -746,   1e-42L};
  for (DType dtype : {kFloat32, kFloat64}) {
    for (UnaryOp op :
         {UnaryOp::kExp, UnaryOp::kLog, UnaryOp::kTanh, UnaryOp::kSigmoid,
          UnaryOp::kSqrt, UnaryOp::kRsqrt, UnaryOp::kRelu, UnaryOp::kSign,
          UnaryOp::kMaxScalar, UnaryOp::kMinScalar, UnaryOp::kAbs}) {
      Operand a(dtype, {static_cast<int64_t>(values.size())});
      a.Set(values);
      Operand out(dtype, a.sizes());
      UnaryArgs args;
      args.op = op;
      args.shape = a.shape();
      args.a = a.in();
      args.out = out.out();
      args.scalar = 0.5;
      RunKernel(&KernelTable::unary, args);
      const Reals read = a.Read();
      Reals expected, bounds;
      for (Real x : read) {
        expected.push_back(reference::Unary(op, x, args.scalar));
        bounds.push_back(std::isfinite(expected.back())
                             ? UnaryBound(op, dtype, x, expected.back())
                             : 0);
      }
      // A sigmoid of -104 is denormal: 1 / (1 + inf) gives 0.
      if (op == UnaryOp::kSigmoid) {
        for (Real& bound : bounds)
          bound += dtype == kFloat32 ? 3e-39L : 1e-307L;
      }
      ExpectWithin(out.Read(), expected, bounds, dtype,
                   "special values of unary " +
                       std::to_string(static_cast<int>(op)) + " in " +
                       Name(dtype));
    }
  }
}

void TestBinary(BinaryOp op, DType dtype, const std::vector<int64_t>& sizes,
                LayoutKind a_layout, LayoutKind b_layout, LayoutKind out_layout,
                WriteMode mode) {
  Random random(static_cast<uint64_t>(op) * 100 + sizes.size());
  const bool compares = op >= BinaryOp::kEqual && op <= BinaryOp::kGreaterEqual;
  const bool positive = op == BinaryOp::kPow || op == BinaryOp::kDiv;
  Operand a(dtype, sizes, a_layout), b(dtype, sizes, b_layout);
  a.Fill(random, positive ? 0.125 : -4, 4);
  b.Fill(random, positive ? (IsFloatingPoint(dtype) ? 0.125 : 1) : -4, 4);
  Operand out(compares ? kBool : dtype, sizes, out_layout);
  if (mode == WriteMode::kAccumulate) out.Fill(random, 0, 4);
  const Reals old = out.Read();
  BinaryArgs args;
  args.op = op;
  args.shape = a.shape();
  args.a = a.in();
  args.b = b.in();
  args.out = out.out();
  args.alpha = IsFloatingPoint(dtype) ? 1.5 : 2;
  args.mode = mode;
  const std::string what = Describe("binary", static_cast<int>(op), dtype,
                                    sizes, a_layout, out_layout) +
                           ", b " + std::to_string(static_cast<int>(b_layout));
  RunAllWays(&KernelTable::binary, args, {&out}, what);
  const Reals va = a.Read(), vb = b.Read();
  Reals expected, bounds;
  for (size_t i = 0; i < va.size(); ++i) {
    Real value = reference::Binary(op, va[i], vb[i], args.alpha);
    if (!IsFloatingPoint(dtype)) value = std::trunc(value);
    Real bound = IsFloatingPoint(dtype) && !compares
                     ? BinaryBound(op, dtype, va[i], vb[i], value)
                     : Real(0);
    if (mode == WriteMode::kAccumulate) {
      value += old[i];
      bound += Gamma(dtype, 1) * (std::abs(value) + bound);
    }
    expected.push_back(value);
    bounds.push_back(bound);
  }
  ExpectWithin(out.Read(), expected, bounds, out.dtype(), what);
}

TEST(PointwiseTest, BinaryOpsMatchTheReference) {
  for (int op = 0; op <= static_cast<int>(BinaryOp::kGreaterEqual); ++op) {
    for (DType dtype : kFloatDTypes) {
      for (const auto& sizes : Shapes()) {
        TestBinary(static_cast<BinaryOp>(op), dtype, sizes,
                   LayoutKind::kContiguous, LayoutKind::kContiguous,
                   LayoutKind::kContiguous, WriteMode::kOverwrite);
      }
    }
  }
}

TEST(PointwiseTest, BinaryOpsOfIntegersAreExact) {
  for (BinaryOp op :
       {BinaryOp::kAdd, BinaryOp::kSub, BinaryOp::kMul, BinaryOp::kDiv,
        BinaryOp::kMax, BinaryOp::kMin, BinaryOp::kEqual, BinaryOp::kNotEqual,
        BinaryOp::kLess, BinaryOp::kLessEqual, BinaryOp::kGreater,
        BinaryOp::kGreaterEqual}) {
    for (DType dtype : {kInt32, kInt64}) {
      TestBinary(op, dtype, {130, 9}, LayoutKind::kTransposed,
                 LayoutKind::kBroadcastInner, LayoutKind::kContiguous,
                 WriteMode::kOverwrite);
    }
  }
  for (BinaryOp op : {BinaryOp::kAnd, BinaryOp::kOr, BinaryOp::kEqual}) {
    TestBinary(op, kBool, {5, 7, 3}, LayoutKind::kTransposed,
               LayoutKind::kContiguous, LayoutKind::kContiguous,
               WriteMode::kOverwrite);
  }
}

// Vectors, and ends of rows.
TEST(PointwiseTest, VectorsOfIntegers) {
  for (DType dtype : {kInt32, kInt64}) {
    for (int64_t cols : {8, 41}) {
      for (LayoutKind layout :
           {LayoutKind::kContiguous, LayoutKind::kAlignedRows}) {
        TestUnary(UnaryOp::kAddScalar, dtype, {3, cols}, layout, layout,
                  WriteMode::kOverwrite);
        TestBinary(BinaryOp::kSub, dtype, {3, cols}, layout, layout, layout,
                   WriteMode::kOverwrite);
      }
    }
  }
}

TEST(PointwiseTest, BinaryOpsTakeAnyStrides) {
  for (DType dtype : {kFloat32, kBFloat16}) {
    for (const auto& sizes : Shapes()) {
      for (LayoutKind a : kInLayouts) {
        for (LayoutKind b : kInLayouts) {
          for (LayoutKind out : kOutLayouts) {
            for (WriteMode mode :
                 {WriteMode::kOverwrite, WriteMode::kAccumulate}) {
              TestBinary(BinaryOp::kSub, dtype, sizes, a, b, out, mode);
            }
          }
        }
      }
    }
  }
}

TEST(PointwiseTest, BinaryOpsOfSpecialValues) {
  const Reals values = {0, -0.0L, 1, kInf, -kInf, kNaN};
  for (DType dtype : {kFloat32, kFloat64, kBFloat16}) {
    for (BinaryOp op :
         {BinaryOp::kAdd, BinaryOp::kMul, BinaryOp::kMax, BinaryOp::kMin,
          BinaryOp::kEqual, BinaryOp::kNotEqual, BinaryOp::kLess,
          BinaryOp::kLessEqual, BinaryOp::kGreater, BinaryOp::kGreaterEqual,
          BinaryOp::kReluBackward}) {
      const auto n = static_cast<int64_t>(values.size());
      Operand a(dtype, {n}), b(dtype, {n});
      a.Set(values);
      b.Set(values);
      const bool compares =
          op >= BinaryOp::kEqual && op <= BinaryOp::kGreaterEqual;
      Operand out(compares ? kBool : dtype, {n, n});
      BinaryArgs args;
      args.op = op;
      args.shape = out.shape();
      args.a = {a.data(), dtype, {1, 0}};
      args.b = {b.data(), dtype, {0, 1}};
      args.out = out.out();
      RunKernel(&KernelTable::binary, args);
      Reals expected;
      for (Real x : values) {
        for (Real y : values) {
          expected.push_back(reference::Binary(op, x, y, 1));
        }
      }
      ExpectWithin(
          out.Read(), expected, Reals(expected.size(), 0), out.dtype(),
          "special values of binary " + std::to_string(static_cast<int>(op)));
    }
  }
}

TEST(PointwiseTest, LargeOperandsSplitAmongThreads) {
  TestBinary(BinaryOp::kAdd, kFloat32, {1000, 333}, LayoutKind::kContiguous,
             LayoutKind::kBroadcastOuter, LayoutKind::kContiguous,
             WriteMode::kOverwrite);
  TestUnary(UnaryOp::kGelu, kBFloat16, {100003}, LayoutKind::kContiguous,
            LayoutKind::kContiguous, WriteMode::kAccumulate);
}

TEST(PointwiseTest, IntegersWrap) {
  Operand a(kInt64, {3}), out(kInt64, {3});
  const int64_t low = std::numeric_limits<int64_t>::min();
  const int64_t high = std::numeric_limits<int64_t>::max();
  static_cast<int64_t*>(a.data())[0] = low;
  static_cast<int64_t*>(a.data())[1] = high;
  static_cast<int64_t*>(a.data())[2] = -1;
  BinaryArgs args;
  args.shape = a.shape();
  args.a = a.in();
  args.b = a.in();
  args.out = out.out();
  const auto* result = static_cast<const int64_t*>(out.data());
  RunKernel(&KernelTable::binary, args);
  EXPECT_EQ(result[0], 0);
  EXPECT_EQ(result[1], -2);
  args.op = BinaryOp::kDiv;
  args.b.data = static_cast<const int64_t*>(a.data()) + 2;
  args.b.strides[0] = 0;
  RunKernel(&KernelTable::binary, args);
  EXPECT_EQ(result[0], low);
  EXPECT_EQ(result[1], -high);
  EXPECT_EQ(result[2], 1);
}

TEST(PointwiseTest, MixedFloatsAndInPlace) {
  Random random(3);
  Operand a(kFloat32, {1000});
  a.Fill(random, -2, 2);
  Operand b(kBFloat16, {1000});
  b.Fill(random, -2, 2);
  const Reals va = a.Read(), vb = b.Read();
  BinaryArgs args;
  args.op = BinaryOp::kMul;
  args.shape = a.shape();
  args.a = a.in();
  args.b = b.in();
  args.out = a.out();
  RunKernel(&KernelTable::binary, args);
  Reals expected;
  for (size_t i = 0; i < va.size(); ++i) expected.push_back(va[i] * vb[i]);
  ExpectWithin(a.Read(), expected, Reals(va.size(), 0), kFloat32,
               "in place f32 *= bf16");
}

void TestWhere(DType dtype, const std::vector<int64_t>& sizes,
               LayoutKind condition_layout, LayoutKind b_layout,
               LayoutKind layout) {
  Random random(11);
  Operand condition(DType::kBool, sizes, condition_layout);
  condition.Fill(random, 0, 1);
  Operand a(dtype, sizes, layout), b(dtype, sizes, b_layout);
  a.Fill(random, 0, 100);
  b.Fill(random, 0, 100);
  Operand out(dtype, sizes, layout);
  const WhereArgs args = {a.shape(), condition.in(), a.in(), b.in(), out.out()};
  RunAllWays(
      {&out}, [&](KernelContext& context) { Kernels().where(args, context); },
      "where");
  const Reals c = condition.Read(), va = a.Read(), vb = b.Read();
  Reals expected;
  for (size_t i = 0; i < c.size(); ++i) {
    expected.push_back(c[i] != 0 ? va[i] : vb[i]);
  }
  EXPECT_EQ(out.Read(), expected) << Name(dtype);
}

TEST(PointwiseTest, WhereSelects) {
  for (DType dtype : kAllDTypes) {
    for (LayoutKind layout : kInLayouts) {
      TestWhere(dtype, {5, 7, 3}, layout, LayoutKind::kTransposed,
                LayoutKind::kPadded);
      // Vectors, and ends of rows.
      TestWhere(dtype, {3, 77}, layout, LayoutKind::kBroadcastInner,
                LayoutKind::kAlignedRows);
      TestWhere(dtype, {3, 80}, layout, LayoutKind::kContiguous,
                LayoutKind::kContiguous);
    }
  }
}

void TestSiluMul(DType dtype, const std::vector<int64_t>& sizes,
                 LayoutKind gate_layout, LayoutKind up_layout,
                 LayoutKind grad_layout) {
  Random random(5);
  Operand gate(dtype, sizes, gate_layout), up(dtype, sizes, up_layout),
      grad(dtype, sizes, grad_layout);
  gate.Fill(random, -6, 6);
  up.Fill(random, -2, 2);
  grad.Fill(random, -2, 2);
  Operand out(dtype, sizes, up_layout), dgate(dtype, sizes, up_layout),
      dup(dtype, sizes, grad_layout);
  const SiluMulArgs forward = {gate.shape(), gate.in(), up.in(), out.out()};
  const SiluMulBackwardArgs backward = {gate.shape(), grad.in(),   gate.in(),
                                        up.in(),      dgate.out(), dup.out()};
  RunAllWays(
      {&out, &dgate, &dup},
      [&](KernelContext& context) {
        Kernels().silu_mul(forward, context);
        Kernels().silu_mul_backward(backward, context);
      },
      "silu_mul");
  const Reals g = gate.Read(), u = up.Read(), dy = grad.Read();
  Reals y, y_bound, dg, dg_bound, du, du_bound;
  for (size_t i = 0; i < g.size(); ++i) {
    const Real silu = reference::Silu(g[i]);
    y.push_back(silu * u[i]);
    y_bound.push_back(Gamma(dtype, 18) * std::abs(y.back()));
    dg.push_back(dy[i] * u[i] * reference::SiluDerivative(g[i]));
    dg_bound.push_back(Gamma(dtype, 42) * std::abs(dy[i] * u[i]) *
                       reference::Sigmoid(g[i]) * (1 + std::abs(g[i])));
    du.push_back(dy[i] * silu);
    du_bound.push_back(Gamma(dtype, 18) * std::abs(du.back()));
  }
  ExpectWithin(out.Read(), y, y_bound, dtype, "silu_mul");
  ExpectWithin(dgate.Read(), dg, dg_bound, dtype, "silu_mul dgate");
  ExpectWithin(dup.Read(), du, du_bound, dtype, "silu_mul dup");

  // A gradient that is not wanted is not written.
  const Bytes of_both[] = {dup.bytes(), dgate.bytes()};
  for (bool of_gate : {false, true}) {
    SiluMulBackwardArgs one = backward;
    one.want_dgate = of_gate;
    one.want_dup = !of_gate;
    Operand& unwanted = of_gate ? dup : dgate;
    Operand& wanted = of_gate ? dgate : dup;
    for (Operand* output : {&wanted, &unwanted}) {
      output->set_bytes(Bytes(output->bytes().size(), std::byte{0xFF}));
    }
    Run([&](KernelContext& context) {
      Kernels().silu_mul_backward(one, context);
    });
    EXPECT_TRUE(wanted.bytes() == of_both[of_gate ? 1 : 0]) << of_gate;
    EXPECT_TRUE(unwanted.bytes() ==
                Bytes(unwanted.bytes().size(), std::byte{0xFF}))
        << of_gate;
  }
}

TEST(PointwiseTest, SiluMulAndItsGradients) {
  for (DType dtype : kFloatDTypes) {
    for (const auto& sizes : Shapes()) {
      TestSiluMul(dtype, sizes, LayoutKind::kPadded, LayoutKind::kContiguous,
                  LayoutKind::kTransposed);
      TestSiluMul(dtype, sizes, LayoutKind::kContiguous,
                  LayoutKind::kContiguous, LayoutKind::kContiguous);
      TestSiluMul(dtype, sizes, LayoutKind::kAlignedRows,
                  LayoutKind::kAlignedRows, LayoutKind::kAlignedRows);
    }
  }
  for (const auto& [cols, layout] : kRowsCases) {
    for (DType dtype : kSixteenBitDTypes) {
      TestSiluMul(dtype, {2, cols}, layout, layout, layout);
    }
  }
}

}  // namespace
}  // namespace crosshatch::kernel_test
