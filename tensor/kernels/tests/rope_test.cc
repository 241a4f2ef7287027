// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <string>
#include <vector>

#include "crosshatch/tensor/kernels/kernel_testutil.h"
#include "gtest/gtest.h"

namespace crosshatch::kernel_test {
namespace {

struct Tables {
  DeviceVector<float> cos, sin;
};
/// \param time rows, of one table or of several
Tables MakeTables(int64_t time, int64_t half) {
  Tables tables;
  for (int64_t t = 0; t < time; ++t) {
    for (int64_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(t) *
                           std::pow(10000.0, -static_cast<double>(i) /
                                                 static_cast<double>(half));
      tables.cos.push_back(static_cast<float>(std::cos(angle)));
      tables.sin.push_back(static_cast<float>(std::sin(angle)));
    }
  }
  return tables;
}

void TestRope(DType dtype, std::vector<int64_t> sizes, bool inverse,
              bool in_place, bool own_tables = false,
              LayoutKind layout = LayoutKind::kContiguous) {
  Random random(static_cast<uint64_t>(sizes[3]));
  const int64_t half = sizes[3] / 2;
  const Tables tables = MakeTables(sizes[1] * sizes[0], half);
  Operand x(dtype, sizes, layout), out(dtype, sizes, layout);
  x.Fill(random, -3, 3);
  const Reals values = x.Read();
  Operand& target = in_place ? x : out;
  const RopeArgs args = {sizes[0],
                         sizes[1],
                         sizes[2],
                         sizes[3],
                         x.heads(),
                         target.heads_out(),
                         tables.cos.data(),
                         tables.sin.data(),
                         dtype,
                         inverse,
                         own_tables ? sizes[1] * half : 0};
  RunAllWays(&KernelTable::rope, args, {&target}, "rope");
  Reals expected, bounds;
  for (size_t i = 0; i < values.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    const int64_t d = at % sizes[3];
    const int64_t row = at / (sizes[3] * sizes[2]);
    const int64_t t = own_tables ? row : row % sizes[1];
    const auto entry = static_cast<size_t>(t * half + d % half);
    const Real cos = tables.cos[entry];
    const Real sin = inverse ? -tables.sin[entry] : tables.sin[entry];
    const auto shift = static_cast<size_t>(half);
    const Real turned = d < half ? -values[i + shift] : values[i - shift];
    expected.push_back(values[i] * cos + turned * sin);
    bounds.push_back(Gamma(dtype, 2) *
                     (std::abs(values[i] * cos) + std::abs(turned * sin)));
  }
  ExpectWithin(target.Read(), expected, bounds, dtype,
               std::string("rope of ") + Name(dtype));
}

TEST(RopeTest, RotatesHalves) {
  for (DType dtype : kFloatDTypes) {
    for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{2, 5, 3, 8},
                                              {1, 1, 1, 2},
                                              {1, 7, 2, 26},
                                              {0, 3, 2, 4},
                                              {2, 0, 2, 4},
                                              {1, 3, 0, 4},
                                              {1, 2, 1, 1030},
                                              {1, 3, 33, 16},
                                              {3, 64, 4, 64}}) {
      for (bool inverse : {false, true}) {
        TestRope(dtype, sizes, inverse, false);
      }
    }
  }
}

TEST(RopeTest, HeadsOfVectors) {
  for (DType dtype : kFloatDTypes) {
    for (LayoutKind layout : {LayoutKind::kContiguous, LayoutKind::kAlignedRows,
                              LayoutKind::kUnalignedRows}) {
      for (int64_t dim : {16, 128}) {
        TestRope(dtype, {2, 3, 18, dim}, false, false, false, layout);
        TestRope(dtype, {1, 3, 2, dim}, true, true, true, layout);
      }
    }
  }
}

TEST(RopeTest, RowsMayHaveTablesOfTheirOwn) {
  for (DType dtype : {kFloat32, kBFloat16}) {
    TestRope(dtype, {3, 5, 2, 8}, false, false, /*own_tables=*/true);
    TestRope(dtype, {2, 3, 2, 32}, true, false, /*own_tables=*/true);
  }
}

// RunAllWays restores the input before each run, so it works in place.
TEST(RopeTest, InPlace) {
  TestRope(kFloat32, {2, 5, 3, 8}, false, true);
  TestRope(kBFloat16, {2, 5, 3, 600}, true, true);
}

}  // namespace
}  // namespace crosshatch::kernel_test
