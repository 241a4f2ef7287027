// SPDX-License-Identifier: Apache-2.0

// Printing of tensors (tensor.h).

#include <string>

#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/cast.h"
#include "crosshatch/tensor/ops/view.h"
#include "crosshatch/tensor/rank_context.h"
#include "crosshatch/tensor/tensor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

TEST(PrintTest, AlignsColumns) {
  const Tensor x = FromValues<float>({2, 3}, {1, -2.5, 3, 1e-7f, 0.1f, 12345});
  EXPECT_EQ(ToString(x),
            "f32[2, 3] on cpu\n"
            "[[    1,  -2.5,     3],\n"
            " [1e-07,   0.1, 12345]]");
  // In the tensor's order, not in memory order.
  EXPECT_EQ(ToString(Transpose(x, 0, 1)),
            "f32[3, 2] on cpu\n"
            "[[    1, 1e-07],\n"
            " [ -2.5,   0.1],\n"
            " [    3, 12345]]");
}

TEST(PrintTest, PrintsEveryDType) {
  const Tensor x = FromValues<float>({3}, {0, 1.0f / 3, -2});
  const struct {
    DType dtype;
    const char* text;
  } cases[] = {
      {kFloat64, "f64[3] on cpu\n[         0, 0.33333334,         -2]"},
      {kBFloat16, "bf16[3] on cpu\n[    0, 0.334,    -2]"},
      {kFloat16, "f16[3] on cpu\n[     0, 0.3333,     -2]"},
      {kInt32, "i32[3] on cpu\n[ 0,  0, -2]"},
      {kInt64, "i64[3] on cpu\n[ 0,  0, -2]"},
      {kBool, "bool[3] on cpu\n[false,  true,  true]"}};
  for (const auto& c : cases) EXPECT_EQ(ToString(ToDType(x, c.dtype)), c.text);
  EXPECT_EQ(ToString(ToDType(Arange(3), kUInt16)), "u16[3] on cpu\n[0, 1, 2]");
}

TEST(PrintTest, PrintsEveryNumberOfDims) {
  EXPECT_EQ(ToString(Full({}, 2.5)), "f32[] on cpu\n2.5");
  EXPECT_EQ(ToString(Ones({0, 3})), "f32[0, 3] on cpu\n[]");
  EXPECT_EQ(ToString(Ones({2, 1, 2})),
            "f32[2, 1, 2] on cpu\n"
            "[[[1, 1]],\n"
            "\n"
            " [[1, 1]]]");
}

TEST(PrintTest, ShortensLongOnes) {
  EXPECT_EQ(ToString(Arange(1001, kInt64)),
            "i64[1001] on cpu\n"
            "[   0,    1,    2, ...,  998,  999, 1000]");
  EXPECT_EQ(ToString(Full({1000, 2}, 7)),
            "f32[1000, 2] on cpu\n"
            "[[7, 7],\n"
            " [7, 7],\n"
            " [7, 7],\n"
            " ...,\n"
            " [7, 7],\n"
            " [7, 7],\n"
            " [7, 7]]");
  // 80 columns hold 26 words of one letter.
  const std::string text = ToString(Full({30}, 7));
  EXPECT_EQ(text.find("\n 7", 20),
            std::string("f32[30] on cpu\n").size() + 3 * 26)
      << text;
}

TEST(PrintTest, PrintsWhyThereAreNoValues) {
  EXPECT_EQ(ToString(Tensor()), "an undefined tensor");
  EXPECT_EQ(ToString(Deferred({2}, kFloat32, "nobody")),
            "f32[2] on meta\n(no memory yet)");
  RankContext context({.dry_run = true});
  const RankContextScope scope(&context);
  EXPECT_EQ(ToString(Ones({2})), "f32[2] on meta\n(no values in a dry run)");
}

TEST(PrintTest, TestsPrintByIt) {
  EXPECT_EQ(::testing::PrintToString(Arange(2)), "f32[2] on cpu\n[0, 1]");
}

}  // namespace
}  // namespace crosshatch
