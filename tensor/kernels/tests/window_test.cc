// SPDX-License-Identifier: Apache-2.0
#include <sstream>
#include <string>
#include <vector>

#include "crosshatch/tensor/kernels/kernel_testutil.h"
#include "crosshatch/tensor/kernels/reference/reference.h"
#include "gtest/gtest.h"

namespace crosshatch::kernel_test {
namespace {

/// Returns a dim with as many windows as fit.
WindowDim Dim(int64_t size, int64_t kernel, int64_t stride = 1,
              int64_t padding = 0, int64_t dilation = 1) {
  const int64_t room = size + 2 * padding - dilation * (kernel - 1) - 1;
  return {size,   room < 0 ? 0 : room / stride + 1, kernel, stride, dilation,
          padding};
}

struct Case {
  int64_t images;
  int64_t channels;
  WindowDim rows;
  WindowDim cols;
};

const std::vector<Case>& Cases() {
  static const auto* const cases = new std::vector<Case>{
      {1, 1, Dim(1, 1), Dim(1, 1)},
      {2, 3, Dim(8, 4, 4), Dim(12, 4, 4)},
      {2, 3, Dim(7, 3, 2, 1), Dim(5, 3, 1, 1)},
      {1, 5, Dim(1, 1), Dim(31, 3, 2, 1)},
      {3, 2, Dim(9, 3, 1, 2, 2), Dim(7, 2, 3, 0, 3)},
      // Elements in no window, and windows in padding only.
      {1, 2, Dim(7, 1, 3), Dim(5, 2, 4)},
      {1, 1, Dim(2, 1, 1, 3), Dim(2, 2, 1, 3)},
      {2, 130, Dim(5, 3, 1, 1), Dim(4, 3, 1, 1)},
      {0, 3, Dim(4, 2), Dim(4, 2)},
      {2, 0, Dim(4, 2), Dim(4, 2)},
      {2, 3, Dim(2, 3), Dim(4, 2)},
  };
  return *cases;
}

std::string Describe(const char* kernel, const Case& c, DType dtype) {
  std::ostringstream text;
  text << kernel << " of " << Name(dtype) << ", case "
       << static_cast<int64_t>(&c - Cases().data());
  return text.str();
}

WindowsArgs ArgsOf(const Case& c, Operand& in, Operand& out) {
  return {c.images,  c.channels, c.rows,    c.cols,
          in.data(), out.data(), in.dtype()};
}

std::vector<int64_t> WindowSizes(const Case& c) {
  return {c.images,   c.rows.windows, c.cols.windows,
          c.channels, c.rows.kernel,  c.cols.kernel};
}
std::vector<int64_t> ImageSizes(const Case& c) {
  return {c.images, c.channels, c.rows.size, c.cols.size};
}

TEST(WindowsTest, UnfoldCopies) {
  for (const Case& c : Cases()) {
    for (DType dtype : kAllDTypes) {
      Random random(5);
      Operand in(dtype, ImageSizes(c)), out(dtype, WindowSizes(c));
      in.Fill(random, 0, 50);
      const WindowsArgs args = ArgsOf(c, in, out);
      const std::string what = Describe("unfold", c, dtype);
      RunAllWays(&KernelTable::unfold, args, {&out}, what);
      const Reals values = in.Read(), actual = out.Read();
      const std::vector<int64_t> from = reference::ElementsOfWindows(args);
      ASSERT_EQ(from.size(), actual.size());
      for (size_t i = 0; i < from.size(); ++i) {
        ASSERT_EQ(actual[i],
                  from[i] < 0 ? 0 : values[static_cast<size_t>(from[i])])
            << what << " at " << i;
      }
    }
  }
}

TEST(WindowsTest, FoldAdds) {
  for (const Case& c : Cases()) {
    for (DType dtype : kFloatDTypes) {
      Random random(6);
      Operand in(dtype, WindowSizes(c)), out(dtype, ImageSizes(c));
      in.Fill(random, -2, 2);
      const WindowsArgs args = ArgsOf(c, in, out);
      const std::string what = Describe("fold", c, dtype);
      RunAllWays(&KernelTable::fold, args, {&out}, what);
      const Reals values = in.Read();
      const std::vector<int64_t> to = reference::ElementsOfWindows(args);
      Reals expected(static_cast<size_t>(out.numel())), bounds(expected.size());
      // An element is in at most one window per kernel element.
      const Real error = Gamma(dtype, c.rows.kernel * c.cols.kernel);
      for (size_t i = 0; i < to.size(); ++i) {
        if (to[i] < 0) continue;
        expected[static_cast<size_t>(to[i])] += values[i];
        bounds[static_cast<size_t>(to[i])] += error * std::abs(values[i]);
      }
      ExpectWithin(out.Read(), expected, bounds, dtype, what);
    }
  }
}

}  // namespace
}  // namespace crosshatch::kernel_test
