// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/emulation/traffic.h"

#include <cstdint>
#include <vector>

#include "crosshatch/emulation/cuda_device.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using emulation::NoteLoad;
using emulation::NoteStore;
using emulation::RunGrid;
using emulation::Traffic;
using emulation::TrafficCount;

// Returns memory that starts at a sector.
float* Memory() {
  alignas(256) static float memory[1 << 14];
  return memory;
}

// Returns the loads of a block of `threads`, of which thread i reads float
// index(i).
template <typename Index>
Traffic LoadsOf(unsigned threads, Index index, uint64_t seed = 0) {
  const TrafficCount count;
  RunGrid({"loads", {}, {threads}, 0, seed}, [&] {
    NoteLoad(Memory() + index(static_cast<int>(threadIdx.x)), sizeof(float));
  });
  return count.total();
}

TEST(TrafficTest, LanesOfAWarpShareSectors) {
  for (uint64_t seed : {0, 3}) {
    const Traffic neighbours = LoadsOf(
        64, [](int i) { return i; }, seed);
    EXPECT_EQ(neighbours.load_requests, 2);
    EXPECT_EQ(neighbours.load_sectors, 8);
    EXPECT_EQ(neighbours.bytes(), 64 * 4);
    EXPECT_EQ(LoadsOf(
                  64, [](int) { return 5; }, seed)
                  .load_sectors,
              2);
    EXPECT_EQ(LoadsOf(
                  64, [](int i) { return 8 * i; }, seed)
                  .load_sectors,
              64);
    // Not aligned to a sector.
    EXPECT_EQ(LoadsOf(
                  32, [](int i) { return i + 3; }, seed)
                  .load_sectors,
              5);
  }
}

TEST(TrafficTest, EachTurnOfALoopIsARequest) {
  const TrafficCount count;
  RunGrid({"loop", {2}, {32}}, [] {
    for (int i = 0; i < 3; ++i) {
      NoteLoad(Memory() + 4 * threadIdx.x, 16);
      NoteStore(Memory() + 4 * threadIdx.x, 16);
    }
  });
  EXPECT_EQ(count.total().load_requests, 6);
  EXPECT_EQ(count.total().load_sectors, 6 * 16);
  EXPECT_EQ(count.total().store_requests, 6);
  EXPECT_EQ(count.total().store_sectors, 6 * 16);
}

TEST(TrafficTest, NothingIsCountedOutsideOfIt) {
  RunGrid({"before", {}, {32}}, [] { NoteLoad(Memory(), 4); });
  const TrafficCount count;
  EXPECT_EQ(count.total().load_requests, 0);
  NoteLoad(Memory(), 4);
  EXPECT_EQ(count.total().load_requests, 0);
}

TEST(TrafficDeathTest, OneCountAtATime) {
  const TrafficCount count;
  EXPECT_DEATH(TrafficCount(), "traffic is counted already");
}

}  // namespace
}  // namespace crosshatch
