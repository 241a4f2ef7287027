// SPDX-License-Identifier: Apache-2.0

/// \file
/// Matrix products of warps, on a device and under emulation: the same
/// instructions, with each lane's fragments as defined by the PTX ISA.

#include <cstddef>
#include <cstdint>

#include "crosshatch/tensor/half_bits.h"
#include "crosshatch/tensor/kernels/cuda/mma.cuh"
#include "crosshatch/tensor/kernels/kernel_testutil.h"
#include "gtest/gtest.h"

namespace crosshatch::internal {
namespace {

using kernel_test::DeviceVector;

constexpr int kCols = 64;
constexpr LaunchGeometry kOneWarp = {.blocks = 1};

template <DType D>
uint16_t BitsOf(int number) {
  const auto value = static_cast<float>(number);
  return D == kBFloat16 ? BFloat16Bits(value) : Float16Bits(value);
}
template <DType D>
uint32_t PairOfNumbers(int first, int second) {
  return BitsOf<D>(first) | static_cast<uint32_t>(BitsOf<D>(second)) << 16;
}

// Small integers, whose products sum exactly.
int A(int row, int col) { return (row * 7 + col * 3) % 11 - 4; }
int B(int row, int col) { return (row * 5 + col * 2) % 13 - 6; }

template <DType D>
__global__ void MultiplyKernel(const uint32_t* left, const uint32_t* right,
                               float* sums) {
  const int lane = LaneOfWarp();
  LeftPart of_left;
  RightPart of_right;
  SumsPart of_sums;
  for (int i = 0; i < 4; ++i) {
    of_left[i] = LoadGlobal<uint32_t>(left + 4 * lane + i);
    of_sums[i] = LoadGlobal<float>(sums + 4 * lane + i);
  }
  for (int i = 0; i < 2; ++i) {
    of_right[i] = LoadGlobal<uint32_t>(right + 2 * lane + i);
  }
  __syncwarp();
  MultiplyAdd<D>(of_sums, of_left, of_right);
  for (int i = 0; i < 4; ++i) StoreGlobal(sums + 4 * lane + i, of_sums[i]);
}

template <DType D>
void TestPartsOfLanes() {
  DeviceVector<uint32_t> left(4 * 32), right(2 * 32);
  DeviceVector<float> sums(4 * 32, 100);
  for (int lane = 0; lane < 32; ++lane) {
    const int g = lane / 4;
    const int t = lane % 4;
    uint32_t* const a = left.data() + 4 * lane;
    a[0] = PairOfNumbers<D>(A(g, 2 * t), A(g, 2 * t + 1));
    a[1] = PairOfNumbers<D>(A(g + 8, 2 * t), A(g + 8, 2 * t + 1));
    a[2] = PairOfNumbers<D>(A(g, 2 * t + 8), A(g, 2 * t + 9));
    a[3] = PairOfNumbers<D>(A(g + 8, 2 * t + 8), A(g + 8, 2 * t + 9));
    uint32_t* const b = right.data() + 2 * lane;
    b[0] = PairOfNumbers<D>(B(2 * t, g), B(2 * t + 1, g));
    b[1] = PairOfNumbers<D>(B(2 * t + 8, g), B(2 * t + 9, g));
  }
  kernel_test::Run([&](KernelContext& context) {
    LaunchKernel("product of a warp", &MultiplyKernel<D>, kOneWarp, context,
                 left.data(), right.data(), sums.data());
  });
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < 4; ++i) {
      const int row = lane / 4 + i / 2 * 8;
      const int col = lane % 4 * 2 + i % 2;
      int sum = 100;
      for (int k = 0; k < 16; ++k) sum += A(row, k) * B(k, col);
      EXPECT_EQ(sums[static_cast<size_t>(4 * lane + i)],
                static_cast<float>(sum))
          << Name(D) << " lane " << lane << ", sum " << i;
    }
  }
}

TEST(MmaTest, EachLaneHasItsPartsOfTheMatrices) {
  TestPartsOfLanes<kBFloat16>();
  TestPartsOfLanes<kFloat16>();
}

// Computes X Y^T, then X Y, then (X Y^T) X, then X^T Y. X are columns 16 to 31
// of a tile of 16 rows, Y its columns 32 to 47.
template <DType D>
__global__ void TilesKernel(const uint16_t* numbers, float* products) {
  CH_SHARED(tile, TileRow<kCols>[16]);
  const int lane = LaneOfWarp();
  for (int i = lane; i < 16 * kCols / 8; i += kWarpThreads) {
    tile[i / (kCols / 8)].eights[i % (kCols / 8)] =
        LoadGlobal<Eight>(numbers + 8 * i);
  }
  __syncwarp();
  LeftPart x;
  LoadLeft(x, tile, 2);
  SumsPart sums[4][2] = {};
  RightPart right[2];
  LoadRightOfTransposed(right, tile, 4);
  for (int n = 0; n < 2; ++n) MultiplyAdd<D>(sums[0][n], x, right[n]);
  LoadRight(right, tile, 4);
  for (int n = 0; n < 2; ++n) MultiplyAdd<D>(sums[1][n], x, right[n]);
  LeftPart left;
  LeftOfSums<D>(left, sums[0][0], sums[0][1]);
  LoadRight(right, tile, 2);
  for (int n = 0; n < 2; ++n) MultiplyAdd<D>(sums[2][n], left, right[n]);
  LoadLeftOfTransposed(left, tile, 2);
  LoadRight(right, tile, 4);
  for (int n = 0; n < 2; ++n) MultiplyAdd<D>(sums[3][n], left, right[n]);
  for (int e = 0; e < 32; ++e) {
    const int row = lane / 4 + e % 4 / 2 * 8;
    const int col = e / 4 % 2 * 8 + lane % 4 * 2 + e % 2;
    StoreGlobal(products + (e / 8 * 16 + row) * 16 + col,
                sums[e / 8][e / 4 % 2][e % 4]);
  }
}

// Returns 0 or 1 without a pattern. Sums of 16 products are exact in every
// dtype.
int Bit(int row, int col) {
  return static_cast<int>(
      (static_cast<uint32_t>(row * kCols + col) * 2654435761u) >> 31);
}

template <DType D>
void TestTiles() {
  DeviceVector<uint16_t> numbers;
  for (int i = 0; i < 16 * kCols; ++i) {
    numbers.push_back(BitsOf<D>(Bit(i / kCols, i % kCols)));
  }
  DeviceVector<float> products(4 * 16 * 16, -1);
  kernel_test::Run([&](KernelContext& context) {
    LaunchKernel("products of tiles", &TilesKernel<D>, kOneWarp, context,
                 numbers.data(), products.data());
  });
  const auto x = [](int row, int col) { return Bit(row, 16 + col); };
  const auto y = [](int row, int col) { return Bit(row, 32 + col); };
  int expected[4][16][16] = {};
  for (int k = 0; k < 16; ++k) {
    for (int row = 0; row < 16; ++row) {
      for (int col = 0; col < 16; ++col) {
        expected[0][row][col] += x(row, k) * y(col, k);
        expected[1][row][col] += x(row, k) * y(k, col);
        expected[3][row][col] += x(k, row) * y(k, col);
      }
    }
  }
  for (int k = 0; k < 16; ++k) {
    for (int row = 0; row < 16; ++row) {
      for (int col = 0; col < 16; ++col) {
        expected[2][row][col] += expected[0][row][k] * x(k, col);
      }
    }
  }
  for (size_t i = 0; i < products.size(); ++i) {
    EXPECT_EQ(products[i],
              static_cast<float>(expected[i / 256][i / 16 % 16][i % 16]))
        << Name(D) << " product " << i / 256 << ", row " << i / 16 % 16
        << ", column " << i % 16;
  }
}

TEST(MmaTest, MatricesComeFromTilesAndFromSums) {
  TestTiles<kBFloat16>();
  TestTiles<kFloat16>();
}

template <DType D>
__global__ void PairKernel(const float* numbers, uint32_t* pair) {
  const float first = LoadGlobal<float>(numbers);
  const float second = LoadGlobal<float>(numbers + 1);
  if (threadIdx.x == 0) StoreGlobal(pair, PairOf<D>(first, second));
}

template <DType D>
void ExpectPair(float first, float second, uint32_t expected) {
  DeviceVector<float> numbers = {first, second};
  DeviceVector<uint32_t> pair(1);
  kernel_test::Run([&](KernelContext& context) {
    LaunchKernel("pair of numbers", &PairKernel<D>, kOneWarp, context,
                 numbers.data(), pair.data());
  });
  EXPECT_EQ(pair[0], expected) << Name(D) << " " << first << ", " << second;
}

// The lower bits hold the first number. Ties round to even.
TEST(MmaTest, NumbersAreRoundedToPairs) {
  ExpectPair<kBFloat16>(1, -2, 0xC0003F80);
  ExpectPair<kBFloat16>(1 + 0x1p-8f, 1 + 0x3p-8f, 0x3F823F80);
  ExpectPair<kFloat16>(1, -2, 0xC0003C00);
  ExpectPair<kFloat16>(1 + 0x1p-11f, 1 + 0x3p-11f, 0x3C023C00);
  ExpectPair<kFloat16>(0x1p-24f, 1e6f, 0x7C000001);
}

}  // namespace
}  // namespace crosshatch::internal
