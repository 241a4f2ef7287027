// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/kernels/cuda/typed_rows.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"

namespace crosshatch::internal {
namespace {

TEST(DividerTest, DividesAsTheOperator) {
  constexpr uint32_t kMost = 0x7FFFFFFF;
  std::vector<uint32_t> numbers;
  for (uint32_t i = 1; i < 300; ++i) numbers.push_back(i);
  for (int bit = 8; bit < 31; ++bit) {
    for (uint32_t by : {0u, 1u, 2u, 3u}) {
      numbers.push_back((1u << bit) - 1 + by);
    }
  }
  numbers.push_back(kMost);
  for (uint32_t by : numbers) {
    const Divider divider(by);
    EXPECT_EQ(divider.Divide(0), 0u);
    for (uint32_t n : numbers) {
      // Around multiples, where a wrong rounding shows.
      const uint32_t multiple = n / by * by;
      for (uint32_t m : {n, multiple, multiple - 1, kMost / by * by - 1}) {
        if (m > kMost) continue;
        ASSERT_EQ(divider.Divide(m), m / by) << m << " / " << by;
      }
    }
  }
}

class TypedRowsTest : public ::testing::Test {
 protected:
  // Of an input and an output of the same shape.
  bool Make(std::vector<int64_t> sizes, std::vector<int64_t> in,
            std::vector<int64_t> out, DType in_dtype = kBFloat16) {
    alignas(16) static const float memory[4] = {};
    KernelShape shape;
    shape.ndim = static_cast<int>(sizes.size());
    std::copy(sizes.begin(), sizes.end(), shape.sizes);
    const auto strided = MakeStrided<2>(
        shape,
        {StridedOperand{const_cast<float*>(memory), in_dtype, in.data()},
         StridedOperand{const_cast<float*>(memory), kBFloat16, out.data()}},
        8);
    return rows_.Make(strided);
  }
  TypedRows<2> rows_;
};

TEST_F(TypedRowsTest, TakesRowsOfVectors) {
  ASSERT_TRUE(Make({3, 20}, {20, 1}, {20, 1}));
  EXPECT_EQ(rows_.cols, 60u);
  EXPECT_EQ(rows_.vectors, 8u);
  ASSERT_TRUE(Make({3, 20}, {24, 1}, {32, 1}));
  EXPECT_EQ(rows_.cols, 20u);
  EXPECT_EQ(rows_.vectors, 9u);
  EXPECT_EQ(rows_.vectors_per_row.divisor, 3u);
  EXPECT_EQ(rows_.strides[0], 24u);
  EXPECT_EQ(rows_.strides[1], 32u);
}

TEST_F(TypedRowsTest, TakesNothingElse) {
  EXPECT_FALSE(Make({3, 20}, {20, 1}, {20, 1}, kFloat32));
  EXPECT_FALSE(Make({3, 20}, {21, 1}, {24, 1}));   // Unaligned.
  EXPECT_FALSE(Make({3, 20}, {0, 0}, {20, 1}));    // One element for all.
  EXPECT_FALSE(Make({3, 20}, {1, 3}, {20, 1}));    // Transposed.
  EXPECT_FALSE(Make({3, 20}, {-24, 1}, {24, 1}));  // Backwards.
  EXPECT_FALSE(Make({2, 3, 16}, {64, 16, 1}, {96, 24, 1}));
  EXPECT_FALSE(Make({0, 20}, {20, 1}, {20, 1}));
}

TEST_F(TypedRowsTest, IndicesAreBelow2To31) {
  constexpr int64_t kMost = (int64_t{1} << 31) - 1;
  EXPECT_TRUE(Make({kMost}, {1}, {1}));
  EXPECT_FALSE(Make({kMost + 1}, {1}, {1}));
  EXPECT_TRUE(Make({2, 8}, {kMost - 15, 1}, {8, 1}));
  EXPECT_FALSE(Make({2, 8}, {kMost - 7, 1}, {8, 1}));
  EXPECT_FALSE(Make({2, 8}, {8, 1}, {kMost + 1, 1}));
}

}  // namespace
}  // namespace crosshatch::internal
