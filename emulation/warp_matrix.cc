// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/emulation/warp_matrix.h"

#include <array>
#include <cstddef>
#include <cstring>
#include <memory>

#include "crosshatch/base/check.h"
#include "crosshatch/emulation/grid.h"

namespace crosshatch::emulation {
namespace {

constexpr unsigned kWholeWarp = 0xFFFFFFFFu;
constexpr int kRowBytes = 16;

/// The operands of a warp's lanes for one instruction.
struct Brought {
  float a[16][16];
  float b[8][16];  // Column, row.
  const std::byte* rows[kWarpSize];
};

/// A warp's operands. Two buffers alternate: when all lanes have reached the
/// next instruction, none still reads the previous operands. So lanes wait for
/// each other only once per instruction.
struct OfWarp {
  Brought brought[2];
  bool turns[kWarpSize] = {};

  Brought& Next(int lane) {
    return brought[(turns[lane] = !turns[lane]) ? 1 : 0];
  }
};

OfWarp& OwnWarp() {
  // Reused by all grids of the thread.
  static thread_local const auto warps =
      std::make_unique<std::array<OfWarp, kMaxThreadsPerBlock / kWarpSize>>();
  const unsigned thread =
      thread_index.x +
      block_size.x * (thread_index.y + block_size.y * thread_index.z);
  return (*warps)[thread / kWarpSize];
}

void WaitForLanes(bool is_product, Place place) {
  CheckConverged();
  const uint64_t products =
      WarpExchange(WarpOp::kBallot, kWholeWarp, is_product ? 1 : 0, 0, place);
  CH_CHECK_EQ(products, is_product ? kWholeWarp : 0u)
      << WhereInGrid() << ": some lanes of the warp come to a product of "
      << "matrices, and others load some";
}

float Widened(uint32_t pair, int half, float (*widen)(uint16_t)) {
  return widen(static_cast<uint16_t>(pair >> (16 * half)));
}

}  // namespace

void MultiplyAdd(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                 float (*widen)(uint16_t)) {
  const int lane = Lane();
  const int g = lane / 4;
  const int t = lane % 4;
  Brought& brought = OwnWarp().Next(lane);
  for (int half = 0; half < 2; ++half) {
    for (int i = 0; i < 4; ++i) {
      brought.a[g + i % 2 * 8][2 * t + i / 2 * 8 + half] =
          Widened(a[i], half, widen);
    }
    for (int i = 0; i < 2; ++i) {
      brought.b[g][2 * t + i * 8 + half] = Widened(b[i], half, widen);
    }
  }
  WaitForLanes(/*is_product=*/true, {__FILE__, __LINE__});
  for (int i = 0; i < 4; ++i) {
    const float(&row)[16] = brought.a[g + i / 2 * 8];
    const float(&column)[16] = brought.b[2 * t + i % 2];
    for (int k = 0; k < 16; ++k) c[i] += row[k] * column[k];
  }
}

void LoadMatrices(uint32_t (&pairs)[4], const void* row, bool transposed) {
  if (reinterpret_cast<uintptr_t>(row) % kRowBytes != 0) {
    FailMisaligned(row, kRowBytes);
  }
  const int lane = Lane();
  const int g = lane / 4;
  const int t = lane % 4;
  Brought& brought = OwnWarp().Next(lane);
  brought.rows[lane] = static_cast<const std::byte*>(row);
  WaitForLanes(/*is_product=*/false, {__FILE__, __LINE__});
  for (int matrix = 0; matrix < 4; ++matrix) {
    const std::byte* const* const rows = brought.rows + 8 * matrix;
    uint16_t halves[2];
    for (int half = 0; half < 2; ++half) {
      const std::byte* const from = transposed ? rows[2 * t + half] + 2 * g
                                               : rows[g] + 2 * (2 * t + half);
      std::memcpy(&halves[half], from, 2);
    }
    pairs[matrix] = halves[0] | static_cast<uint32_t>(halves[1]) << 16;
  }
}

}  // namespace crosshatch::emulation
