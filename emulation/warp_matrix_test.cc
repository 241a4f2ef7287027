// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/emulation/warp_matrix.h"

#include <array>
#include <cstdint>

#include "crosshatch/emulation/cuda_device.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using emulation::LoadMatrices;
using emulation::MultiplyAdd;
using emulation::RunGrid;

float Whole(uint16_t number) { return number; }

uint32_t Pair(int low, int high) {
  return static_cast<uint32_t>(low) | static_cast<uint32_t>(high) << 16;
}

// Small integers, whose sums are exact.
int A(int row, int col) { return (row * 7 + col * 3) % 11; }
int B(int row, int col) { return (row * 5 + col * 2) % 13; }

// Several consecutive products, by warps in several orders: operands of one
// must not leak into another.
TEST(WarpMatrixTest, MultipliesTheWholeMatrices) {
  for (const uint64_t seed : {0u, 1u, 2u, 3u}) {
    float products[2][16][8] = {};
    RunGrid({"products", {}, {64}, 0, seed}, [&] {
      const int warp = static_cast<int>(threadIdx.x) / 32;
      const int g = static_cast<int>(threadIdx.x) % 32 / 4;
      const int t = static_cast<int>(threadIdx.x) % 4;
      // The second warp's right matrix is shifted by one row.
      const auto of_b = [&](int row) {
        return Pair(B(row + warp, g), B(row + 1 + warp, g));
      };
      const uint32_t a[4] = {Pair(A(g, 2 * t), A(g, 2 * t + 1)),
                             Pair(A(g + 8, 2 * t), A(g + 8, 2 * t + 1)),
                             Pair(A(g, 2 * t + 8), A(g, 2 * t + 9)),
                             Pair(A(g + 8, 2 * t + 8), A(g + 8, 2 * t + 9))};
      const uint32_t b[2] = {of_b(2 * t), of_b(2 * t + 8)};
      float c[4] = {1, 2, 3, 4};
      for (int times = 0; times < 3; ++times) MultiplyAdd(c, a, b, &Whole);
      products[warp][g][2 * t] = c[0];
      products[warp][g][2 * t + 1] = c[1];
      products[warp][g + 8][2 * t] = c[2];
      products[warp][g + 8][2 * t + 1] = c[3];
    });
    for (int warp = 0; warp < 2; ++warp) {
      for (int row = 0; row < 16; ++row) {
        for (int col = 0; col < 8; ++col) {
          int sum = 0;
          for (int k = 0; k < 16; ++k) sum += A(row, k) * B(k + warp, col);
          EXPECT_EQ(products[warp][row][col],
                    static_cast<float>(3 * sum + 1 + row / 8 * 2 + col % 2))
              << "warp " << warp << ", row " << row << ", column " << col;
        }
      }
    }
  }
}

// Row r of a tile of 32 rows contains 8 r + column.
struct alignas(16) Row {
  std::array<uint16_t, 8> numbers;
};
std::array<Row, 33> Rows() {
  std::array<Row, 33> rows = {};
  for (size_t r = 0; r < rows.size(); ++r) {
    for (size_t i = 0; i < 8; ++i) {
      rows[r].numbers[i] = static_cast<uint16_t>(8 * r + i);
    }
  }
  return rows;
}

TEST(WarpMatrixTest, LoadsPairsOfRowsAndOfColumns) {
  const std::array<Row, 33> rows = Rows();
  for (const bool transposed : {false, true}) {
    RunGrid({"loads", {}, {32}, 0, 5}, [&] {
      const int lane = static_cast<int>(threadIdx.x);
      uint32_t pairs[4];
      LoadMatrices(pairs, &rows[threadIdx.x], transposed);
      for (int i = 0; i < 4; ++i) {
        const int first = 64 * i + (transposed ? lane % 4 * 2 * 8 + lane / 4
                                               : lane / 4 * 8 + lane % 4 * 2);
        EXPECT_EQ(pairs[i], Pair(first, first + (transposed ? 8 : 1)))
            << "lane " << lane << ", matrix " << i;
      }
    });
  }
}

class WarpMatrixDeathTest : public testing::Test {
 protected:
  // ThreadSanitizer reports false races of fibers in a forked process.
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(WarpMatrixDeathTest, WhatADeviceLeavesUndefinedEndsTheProgram) {
  const std::array<Row, 33> rows = Rows();
  EXPECT_DEATH(RunGrid({"odd", {}, {32}},
                       [&] {
                         uint32_t pairs[4];
                         LoadMatrices(pairs,
                                      rows[threadIdx.x].numbers.data() + 1,
                                      false);
                       }),
               "kernel odd.*16 bytes.*not aligned");
  EXPECT_DEATH(RunGrid({"both", {}, {32}},
                       [&] {
                         float c[4] = {};
                         uint32_t pairs[4] = {};
                         const uint32_t b[2] = {};
                         if (threadIdx.x < 5) {
                           LoadMatrices(pairs, &rows[threadIdx.x], false);
                         } else {
                           MultiplyAdd(c, pairs, b, &Whole);
                         }
                       }),
               "kernel both.*some lanes.*a product");
  EXPECT_DEATH(RunGrid({"few", {}, {32}},
                       [&] {
                         uint32_t pairs[4];
                         if (threadIdx.x == 9) return;
                         LoadMatrices(pairs, &rows[threadIdx.x], false);
                       }),
               "kernel few.*thread \\(9, 0, 0\\) has ended");
}

// `.aligned` instructions require lanes that have not diverged, and wait for
// nothing that other lanes have stored.
TEST_F(WarpMatrixDeathTest, AnAccessOfMemoryMustBeFollowedByABarrier) {
  const std::array<Row, 33> rows = Rows();
  const auto load_after = [&](bool waits) {
    RunGrid({"diverged", {}, {32}}, [&] {
      emulation::LoadValue<uint16_t>(rows[threadIdx.x].numbers.data());
      if (waits) __syncwarp();
      uint32_t pairs[4];
      LoadMatrices(pairs, &rows[threadIdx.x], false);
      const uint32_t b[2] = {};
      float c[4] = {};
      MultiplyAdd(c, pairs, b, &Whole);
    });
  };
  load_after(/*waits=*/true);
  EXPECT_DEATH(load_after(/*waits=*/false),
               "kernel diverged.*without a barrier of the warp");
}

}  // namespace
}  // namespace crosshatch
