// SPDX-License-Identifier: Apache-2.0
#include <bit>
#include <cmath>
#include <cstring>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "crosshatch/tensor/kernels/kernel_testutil.h"
#include "crosshatch/tensor/kernels/reference/reference.h"
#include "gtest/gtest.h"

namespace crosshatch::kernel_test {
namespace {

constexpr DType kFloat8DTypes[] = {DType::kFloat8E4M3, DType::kFloat8E5M2};
constexpr DType kOthers[] = {DType::kFloat32, DType::kBFloat16,
                             DType::kFloat16};

std::string Text(const char* what, DType a, DType b, int64_t number) {
  std::ostringstream text;
  text << what << " of " << Name(a) << " and " << Name(b) << ", " << number;
  return text.str();
}

/// Fills with finite float8 values of either sign, as the reference rounds
/// them.
void FillFloat8(Operand& operand, Random& random, double largest) {
  Reals values;
  for (int64_t i = 0; i < operand.numel(); ++i) {
    values.push_back(random.In(-largest, largest));
  }
  operand.Set(values);
}

TEST(Float8KernelTest, ScalesFollowTheirDefinition) {
  const std::vector<float> amax = {0,    1e-13f,   448, 3,     1e30f,
                                   0.1f, INFINITY, NAN, 5e-40f};
  for (const bool power_of_two : {false, true}) {
    for (const float largest : {448.0f, 57344.0f}) {
      const auto count = static_cast<int64_t>(amax.size());
      Operand in(kFloat32, {count});
      in.Set(Reals(amax.begin(), amax.end()));
      Operand scale(kFloat32, {count});
      Operand inverse(kFloat32, {count});
      Float8ScaleArgs args;
      args.count = count;
      args.amax = static_cast<const float*>(in.data());
      args.scale = static_cast<float*>(scale.data());
      args.inverse = static_cast<float*>(inverse.data());
      args.largest = largest;
      args.power_of_two = power_of_two;
      RunAllWays(&KernelTable::float8_scale, args, {&scale, &inverse}, "scale");
      for (size_t i = 0; i < amax.size(); ++i) {
        if (std::isnan(amax[i])) {
          EXPECT_TRUE(std::isnan(args.scale[i]));
          EXPECT_TRUE(std::isnan(args.inverse[i]));
          continue;
        }
        auto expected =
            static_cast<float>(static_cast<double>(largest) /
                               std::max(static_cast<double>(amax[i]), 1e-12));
        if (power_of_two && expected != 0) {
          expected = std::ldexp(1.0f, std::ilogb(expected));
        }
        EXPECT_EQ(args.scale[i], expected) << amax[i];
        EXPECT_EQ(args.inverse[i], 1 / expected) << amax[i];
      }
    }
  }
}

struct Layouts {
  std::vector<int64_t> sizes;
  LayoutKind in;
  LayoutKind out;
};

const std::vector<Layouts>& ConvertCases() {
  static const auto* const cases = new std::vector<Layouts>{
      {{0, 3}, LayoutKind::kContiguous, LayoutKind::kContiguous},
      {{1}, LayoutKind::kContiguous, LayoutKind::kContiguous},
      {{4, 64}, LayoutKind::kContiguous, LayoutKind::kContiguous},
      {{5, 61}, LayoutKind::kAlignedRows, LayoutKind::kAlignedRows},
      {{3, 7, 5}, LayoutKind::kTransposed, LayoutKind::kContiguous},
      {{2, 13}, LayoutKind::kPadded, LayoutKind::kPadded},
      {{2, 1100}, LayoutKind::kUnalignedRows, LayoutKind::kContiguous},
  };
  return *cases;
}

/// Which dims the scale has; the others broadcast.
enum class Scale { kNone, kTensor, kRow, kColumn };

void TestConvert(const Layouts& c, DType from, DType to, Scale scale_kind) {
  Random random(static_cast<uint64_t>(c.sizes.size() * 31) +
                static_cast<uint64_t>(from) * 7);
  Operand in(from, c.sizes, c.in);
  Operand out(to, c.sizes, c.out);
  if (IsFloat8(from)) {
    FillFloat8(in, random, 100);
  } else {
    in.Fill(random, -4, 4);
  }
  const size_t last = c.sizes.size() - 1;
  std::vector<int64_t> scale_sizes(c.sizes.size(), 1);
  if (scale_kind == Scale::kRow && last > 0) scale_sizes[0] = c.sizes[0];
  if (scale_kind == Scale::kColumn) scale_sizes[last] = c.sizes[last];
  Operand scale(kFloat32, scale_sizes);
  // Some products saturate.
  scale.Fill(random, 0.001, 300);
  Float8ConvertArgs args;
  args.shape = ShapeOf(c.sizes);
  args.in = in.in();
  args.out = out.out();
  if (scale_kind != Scale::kNone) {
    args.scale = scale.in();
    for (size_t d = 0; d <= last; ++d) {
      if (scale_sizes[d] == 1) args.scale.strides[d] = 0;
    }
  }
  const Reals values = in.Read();
  const Reals scales = scale_kind == Scale::kNone
                           ? Reals(values.size(), 1)
                           : reference::ReadAll(args.shape, args.scale);
  Operand expected(to, c.sizes, c.out);
  Reals products;
  for (size_t i = 0; i < values.size(); ++i) {
    products.push_back(static_cast<float>(values[i]) *
                       static_cast<float>(scales[i]));
  }
  expected.Set(products);
  RunAllWays(&KernelTable::float8_convert, args, {&out},
             Text("convert", from, to, static_cast<int64_t>(scale_kind)));
  EXPECT_EQ(out.Read(), expected.Read())
      << Text("convert", from, to, static_cast<int64_t>(scale_kind));
}

TEST(Float8KernelTest, ConvertsWithAnyScale) {
  for (const Layouts& c : ConvertCases()) {
    for (const DType float8 : kFloat8DTypes) {
      for (const DType other : kOthers) {
        for (const Scale scale :
             {Scale::kNone, Scale::kTensor, Scale::kRow, Scale::kColumn}) {
          TestConvert(c, other, float8, scale);
          TestConvert(c, float8, other, scale);
        }
      }
    }
  }
}

TEST(Float8KernelTest, CopiesMoveBits) {
  for (const DType dtype :
       {DType::kFloat8E4M3, DType::kFloat8E5M2, DType::kUInt8}) {
    for (const Layouts& c : ConvertCases()) {
      Operand in(dtype, c.sizes, c.in);
      Operand out(dtype, c.sizes, c.out);
      Bytes bytes = in.bytes();
      for (size_t i = 0; i < bytes.size(); ++i) {
        bytes[i] = static_cast<std::byte>(i * 37);
      }
      in.set_bytes(bytes);
      CopyArgs args;
      args.shape = ShapeOf(c.sizes);
      args.src = in.in();
      args.out = out.out();
      RunAllWays(&KernelTable::copy, args, {&out}, "copy");
      const auto from = reference::Offsets(args.shape, args.src.strides);
      const auto to = reference::Offsets(args.shape, args.out.strides);
      for (size_t i = 0; i < from.size(); ++i) {
        ASSERT_EQ(out.bytes()[static_cast<size_t>(to[i])],
                  in.bytes()[static_cast<size_t>(from[i])]);
      }
      FillArgs fill;
      fill.shape = args.shape;
      fill.out = out.out();
      RunAllWays(&KernelTable::fill, fill, {&out}, "fill");
      for (const int64_t at : to) {
        ASSERT_EQ(out.bytes()[static_cast<size_t>(at)], std::byte{0});
      }
    }
  }
}

struct Sizes {
  int64_t m, n, k;
};

void TestProduct(const Sizes& c, DType a_dtype, DType b_dtype, DType out_dtype,
                 LayoutKind a_layout, LayoutKind b_layout,
                 LayoutKind out_layout, bool by_row) {
  Random random(static_cast<uint64_t>(c.m * 10007 + c.n * 101 + c.k));
  Operand a(a_dtype, {c.m, c.k}, a_layout);
  Operand b(b_dtype, {c.k, c.n}, b_layout);
  Operand out(out_dtype, {c.m, c.n}, out_layout);
  FillFloat8(a, random, 8);
  FillFloat8(b, random, 8);
  Operand scale_a(kFloat32, {by_row ? c.m : 1});
  Operand scale_b(kFloat32, {by_row ? c.n : 1});
  scale_a.Fill(random, 0.001, 2);
  scale_b.Fill(random, 0.001, 2);
  ScaledMatMulArgs args;
  args.m = c.m;
  args.n = c.n;
  args.k = c.k;
  args.a = {a.data(), a.stride(0), a.stride(1)};
  args.b = {b.data(), b.stride(0), b.stride(1)};
  args.out = {out.data(), out.stride(0), out.stride(1)};
  args.a_dtype = a_dtype;
  args.b_dtype = b_dtype;
  args.out_dtype = out_dtype;
  args.scale_a = static_cast<const float*>(scale_a.data());
  args.scale_b = static_cast<const float*>(scale_b.data());
  args.scales_by_row = by_row;
  const Reals va = a.Read();
  const Reals vb = b.Read();
  Reals expected;
  Reals bounds;
  for (int64_t i = 0; i < c.m; ++i) {
    for (int64_t j = 0; j < c.n; ++j) {
      Real sum = 0;
      Real magnitude = 0;
      for (int64_t k = 0; k < c.k; ++k) {
        const Real term = va[static_cast<size_t>(i * c.k + k)] *
                          vb[static_cast<size_t>(k * c.n + j)];
        sum += term;
        magnitude += std::abs(term);
      }
      const Real scale = Real{args.scale_a[by_row ? i : 0]} *
                         Real{args.scale_b[by_row ? j : 0]};
      expected.push_back(sum * scale);
      bounds.push_back(magnitude * scale * Gamma(kFloat32, c.k + 2));
    }
  }
  Workspace workspace(Kernels().scaled_matmul_workspace_bytes(args));
  args.workspace = workspace.data();
  RunAllWays(&KernelTable::scaled_matmul, args, {&out}, "scaled_matmul");
  std::ostringstream what;
  what << Text("scaled_matmul", a_dtype, b_dtype, by_row) << ": " << c.m << " "
       << c.n << " " << c.k << " to " << Name(out_dtype);
  ExpectWithin(out.Read(), expected, bounds, out_dtype, what.str());
}

TEST(Float8KernelTest, ProductsOfAllFormatsScalesAndSizes) {
  for (const Sizes& c :
       {Sizes{1, 1, 1}, Sizes{0, 3, 2}, Sizes{3, 2, 0}, Sizes{16, 32, 48},
        Sizes{5, 16, 7}, Sizes{7, 13, 16}, Sizes{17, 31, 61}}) {
    for (const bool by_row : {false, true}) {
      for (const DType out : kOthers) {
        TestProduct(c, DType::kFloat8E4M3, DType::kFloat8E4M3, out,
                    LayoutKind::kContiguous, LayoutKind::kContiguous,
                    LayoutKind::kContiguous, by_row);
        TestProduct(c, DType::kFloat8E5M2, DType::kFloat8E4M3, out,
                    LayoutKind::kContiguous, LayoutKind::kTransposed,
                    LayoutKind::kContiguous, by_row);
        TestProduct(c, DType::kFloat8E4M3, DType::kFloat8E5M2, out,
                    LayoutKind::kTransposed, LayoutKind::kTransposed,
                    LayoutKind::kAlignedRows, by_row);
      }
    }
  }
}

}  // namespace
}  // namespace crosshatch::kernel_test
