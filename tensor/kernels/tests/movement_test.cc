// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>
#include <string>

#include "crosshatch/tensor/kernels/kernel_testutil.h"
#include "gtest/gtest.h"

namespace crosshatch::kernel_test {
namespace {

// Returns the result of a conversion by the element functions that define it.
Reals Converted(const Reals& values, DType dtype, bool from_integer = false) {
  Reals result;
  for (Real value : values) {
    double slot[1] = {};
    if (from_integer && dtype == kUInt16 && value < 0) value += 65536;
    reference::WriteElement(slot, dtype, 0, value);
    result.push_back(reference::ReadElement(slot, dtype, 0));
  }
  return result;
}

void Copy(const CopyArgs& args, std::vector<Operand*> outputs,
          const std::string& what) {
  RunAllWays(&KernelTable::copy, args, outputs, what);
}

TEST(CopyTest, ConvertsAnyDTypeToAnyOther) {
  for (DType from : kAllDTypes) {
    for (DType to : kAllDTypes) {
      for (int64_t n : {0, 1, 2, 3, 5, 7, 13, 31, 64, 127, 3000}) {
        Random random(static_cast<uint64_t>(n));
        Operand src(from, {n}), out(to, {n}, LayoutKind::kPadded);
        src.Fill(random, from == kUInt16 ? 0 : -100, 100);
        const std::string what = std::string(Name(from)) + " to " + Name(to);
        Copy({src.shape(), src.in(), out.out()}, {&out}, what);
        EXPECT_EQ(out.Read(), Converted(src.Read(), to, !IsFloatingPoint(from)))
            << what << " " << n;
      }
    }
  }
}

TEST(CopyTest, RowsOfVectors) {
  for (DType from : kAllDTypes) {
    for (DType to : kAllDTypes) {
      for (const auto& [cols, layout] : kRowsCases) {
        if (cols > 64 && (SizeOf(from) != 2 || SizeOf(to) != 2)) continue;
        Random random(static_cast<uint64_t>(cols));
        Operand src(from, {3, cols}, layout), out(to, {3, cols}, layout);
        src.Fill(random, from == DType::kUInt16 ? 0 : -100, 100);
        const std::string what = std::string(Name(from)) + " to " + Name(to);
        Copy({src.shape(), src.in(), out.out()}, {&out}, what);
        EXPECT_EQ(out.Read(), Converted(src.Read(), to, !IsFloatingPoint(from)))
            << what << " " << cols;
      }
    }
  }
}

TEST(CopyTest, TakesAnyStrides) {
  constexpr LayoutKind kIn[] = {
      LayoutKind::kContiguous,     LayoutKind::kTransposed,
      LayoutKind::kPadded,         LayoutKind::kBroadcastInner,
      LayoutKind::kBroadcastOuter, LayoutKind::kAlignedRows};
  constexpr LayoutKind kOut[] = {LayoutKind::kContiguous,
                                 LayoutKind::kTransposed, LayoutKind::kPadded,
                                 LayoutKind::kAlignedRows};
  const std::vector<std::vector<int64_t>> shapes = {
      {},        {3, 0, 2},    {5, 7, 3}, {33, 65},       {130, 9},  {64, 127},
      {1, 5, 1}, {2, 3, 5, 7}, {4, 600},  {3, 40, 2, 35}, {9, 3, 40}};
  for (DType from : {DType::kFloat32, DType::kBool, DType::kInt64}) {
    for (DType to : {DType::kFloat32, DType::kBFloat16, DType::kBool,
                     DType::kInt64, DType::kFloat64}) {
      for (const auto& sizes : shapes) {
        for (LayoutKind in_layout : kIn) {
          for (LayoutKind out_layout : kOut) {
            Random random(7);
            Operand src(from, sizes, in_layout), out(to, sizes, out_layout);
            src.Fill(random, -8, 8);
            Copy({src.shape(), src.in(), out.out()}, {&out}, "copy");
            EXPECT_EQ(out.Read(), Converted(src.Read(), to))
                << Name(from) << " to " << Name(to) << " layouts "
                << static_cast<int>(in_layout) << ", "
                << static_cast<int>(out_layout);
          }
        }
      }
    }
  }
}

// Where source and output are contiguous in different dims, elements of each
// size.
TEST(CopyTest, Transposes) {
  for (DType dtype : kAllDTypes) {
    Random random(11);
    Operand src(dtype, {40, 70}, LayoutKind::kTransposed), out(dtype, {40, 70});
    src.Fill(random, dtype == kUInt16 ? 0 : -100, 100);
    Copy({src.shape(), src.in(), out.out()}, {&out}, "transpose");
    EXPECT_EQ(out.Read(), src.Read()) << Name(dtype);
  }
}

TEST(CopyTest, RowsEndWithinVectors) {
  for (DType dtype : kAllDTypes) {
    Random random(12);
    Operand src(dtype, {3, 37}, LayoutKind::kAlignedRows),
        out(dtype, {3, 37}, LayoutKind::kAlignedRows);
    src.Fill(random, dtype == kUInt16 ? 0 : -100, 100);
    Copy({src.shape(), src.in(), out.out()}, {&out}, "copy");
    EXPECT_EQ(out.Read(), src.Read()) << Name(dtype);
  }
}

TEST(CopyTest, TakesNegativeStrides) {
  Operand src(kInt32, {5}), out(kInt32, {5});
  src.Set({1, 2, 3, 4, 5});
  KernelInput reversed = src.in();
  reversed.data = static_cast<const int32_t*>(src.data()) + 4;
  reversed.strides[0] = -1;
  Copy({src.shape(), reversed, out.out()}, {&out}, "reversed");
  EXPECT_EQ(out.Read(), (Reals{5, 4, 3, 2, 1}));
}

// Every bit pattern of the 16-bit floats, and floats around each of them.
TEST(CopyTest, SixteenBitFloatsRoundAsTheirClassesDo) {
  for (DType dtype : {kBFloat16, kFloat16}) {
    Operand all(dtype, {65536}), floats(kFloat32, {65536});
    auto* bits = static_cast<uint16_t*>(all.data());
    for (int i = 0; i < 65536; ++i) bits[i] = static_cast<uint16_t>(i);
    Copy({all.shape(), all.in(), floats.out()}, {&floats}, "widen");
    const auto* wide = static_cast<const float*>(floats.data());
    for (int64_t i = 0; i < 65536; ++i) {
      const auto expected =
          static_cast<float>(reference::ReadElement(all.data(), dtype, i));
      if (std::isnan(expected)) {
        EXPECT_TRUE(std::isnan(wide[i])) << i;
      } else {
        EXPECT_EQ(wide[i], expected) << i;
        EXPECT_EQ(std::signbit(wide[i]), std::signbit(expected)) << i;
      }
    }
    Random random(1);
    Operand any(kFloat32, {200000}), narrow(dtype, {200000});
    auto* any_bits = static_cast<uint32_t*>(any.data());
    for (int64_t i = 0; i < 200000; ++i) {
      any_bits[i] = static_cast<uint32_t>(random.Next());
      // Ties and their neighbours.
      if (i % 4 == 1) any_bits[i] = (any_bits[i] & ~0xFFFFu) | 0x8000u;
      if (i % 4 == 2) any_bits[i] = (any_bits[i] & ~0x1FFFu) | 0x1000u;
      // The range of half precision.
      if (i % 3 == 0) any_bits[i] = (any_bits[i] & 0x8FFFFFFFu) | 0x30000000u;
    }
    Copy({any.shape(), any.in(), narrow.out()}, {&narrow}, "narrow");
    const auto* result = static_cast<const uint16_t*>(narrow.data());
    const auto* source = static_cast<const float*>(any.data());
    for (int64_t i = 0; i < 200000; ++i) {
      const uint16_t expected = dtype == kBFloat16 ? BFloat16(source[i]).bits
                                                   : Float16(source[i]).bits;
      ASSERT_EQ(result[i], expected)
          << Name(dtype) << " of bits " << any_bits[i];
    }
  }
}

TEST(CopyTest, IntegersSaturateAndTruncate) {
  const Real kInf = std::numeric_limits<Real>::infinity();
  Operand src(kFloat64, {8});
  src.Set({-kInf, kInf, std::numeric_limits<Real>::quiet_NaN(), 1e19L, -1e19L,
           -1.9L, 1.9L, 65535.5L});
  for (DType dtype : {kInt32, kInt64, kUInt16}) {
    Operand out(dtype, {8});
    Copy({src.shape(), src.in(), out.out()}, {&out}, Name(dtype));
    EXPECT_EQ(out.Read(), Converted(src.Read(), dtype)) << Name(dtype);
  }
}

TEST(CopyTest, Accumulates) {
  for (DType from : kAllDTypes) {
    for (DType to : {kFloat32, kFloat64, kBFloat16, kFloat16, kInt32, kInt64}) {
      for (LayoutKind layout :
           {LayoutKind::kContiguous, LayoutKind::kTransposed,
            LayoutKind::kAlignedRows}) {
        Random random(9);
        Operand src(from, {13, 130}, layout),
            out(to, {13, 130}, LayoutKind::kAlignedRows);
        src.Fill(random, 0, 50);
        out.Fill(random, 0, 50);
        Reals expected = out.Read();
        const Reals values = src.Read();
        for (size_t i = 0; i < values.size(); ++i) {
          expected[i] +=
              IsFloatingPoint(to) ? values[i] : std::trunc(values[i]);
        }
        Copy({src.shape(), src.in(), out.out(), WriteMode::kAccumulate}, {&out},
             "accumulate");
        Reals bounds;
        for (Real x : expected) {
          bounds.push_back(Gamma(to, 1) * std::abs(x));
        }
        ExpectWithin(out.Read(), expected, bounds, to,
                     std::string(Name(from)) + " into " + Name(to));
      }
    }
  }
}

TEST(CopyTest, FillAndArange) {
  for (DType dtype : kAllDTypes) {
    for (int64_t n : {0, 1, 7, 64, 127, 70000}) {
      Operand out(dtype, {n},
                  n < 100 ? LayoutKind::kPadded : LayoutKind::kContiguous);
      RunAllWays(&KernelTable::fill, {out.shape(), out.out(), 3.5}, {&out},
                 "fill");
      EXPECT_EQ(out.Read(),
                Converted(Reals(static_cast<size_t>(n), 3.5), dtype));
      Operand rows(dtype, {3, n}, LayoutKind::kAlignedRows);
      RunAllWays(
          {&rows},
          [&](KernelContext& context) {
            Kernels().fill({rows.shape(), rows.out(), 3.5}, context);
          },
          "fill");
      EXPECT_EQ(rows.Read(),
                Converted(Reals(static_cast<size_t>(3 * n), 3.5), dtype));
      Operand range(dtype, {n});
      RunAllWays(&KernelTable::arange, {range.data(), dtype, n, 2, 0.5},
                 {&range}, "arange");
      Reals expected;
      for (int64_t i = 0; i < n; ++i) {
        expected.push_back(2 + Real(0.5) * static_cast<Real>(i));
      }
      EXPECT_EQ(range.Read(), Converted(expected, dtype)) << Name(dtype);
    }
  }
}

// Values whose bytes are equal, and a zero whose bytes are not.
TEST(CopyTest, FillsWithBytes) {
  for (DType dtype : kAllDTypes) {
    for (double value : {0.0, -0.0, -1.0, 1.0}) {
      for (LayoutKind layout :
           {LayoutKind::kContiguous, LayoutKind::kTransposed,
            LayoutKind::kPadded, LayoutKind::kAlignedRows}) {
        for (int64_t n : {0, 1, 37}) {
          Operand out(dtype, {3, n}, layout);
          RunAllWays(
              {&out},
              [&](KernelContext& context) {
                Kernels().fill({out.shape(), out.out(), value}, context);
              },
              "fill");
          const Reals values = out.Read();
          EXPECT_EQ(values,
                    Converted(Reals(static_cast<size_t>(3 * n), value), dtype));
          for (Real x : values) {
            EXPECT_EQ(x == 0 && std::signbit(x), value == 0 &&
                                                     std::signbit(value) &&
                                                     IsFloatingPoint(dtype))
                << Name(dtype) << " " << value;
          }
        }
      }
    }
  }
}

TEST(CopyTest, NullPointersWithoutElements) {
  CopyArgs args;
  args.shape = {2, {0, 3}};
  args.src.strides[0] = args.out.strides[0] = 3;
  args.src.strides[1] = args.out.strides[1] = 1;
  RunKernel(&KernelTable::copy, args);
  RunKernel(&KernelTable::fill, {args.shape, args.out, 0});
  RunKernel(&KernelTable::arange, {});
}

}  // namespace
}  // namespace crosshatch::kernel_test
