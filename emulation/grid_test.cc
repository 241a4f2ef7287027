// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/emulation/grid.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "crosshatch/emulation/cuda_device.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using emulation::kAllLanes;
using emulation::Launch;
using emulation::RunGrid;

// Kernels as in a CUDA source.

__global__ void AddOne(int* values, int n) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) values[i] += 1;
}

// Reverses the piece of each block. Without the barrier a thread reads elements
// that no other has written yet.
__global__ void Reverse(const int* in, int* out, bool with_barrier) {
  CH_SHARED(piece, int[128]);
  const unsigned i = threadIdx.x;
  const unsigned base = blockIdx.x * blockDim.x;
  piece[i] = in[base + i];
  if (with_barrier) __syncthreads();
  out[base + i] = piece[blockDim.x - 1 - i];
}

__global__ void SumOfWarp(const int* in, int* out) {
  int sum = in[blockIdx.x * blockDim.x + threadIdx.x];
  for (int by = 16; by > 0; by /= 2) sum += __shfl_xor_sync(kAllLanes, sum, by);
  out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

std::vector<int> Numbers(int n) {
  std::vector<int> numbers(static_cast<size_t>(n));
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

// Runs one warp and returns the result of `of` by lane.
std::vector<int> OfLanes(const std::function<int(int lane)>& of,
                         uint64_t seed = 0) {
  std::vector<int> results(32);
  RunGrid({"lanes", {}, {32}, 0, seed},
          [&] { results[threadIdx.x] = of(static_cast<int>(threadIdx.x)); });
  return results;
}

std::vector<int> ForLanes(const std::function<int(int lane)>& of) {
  std::vector<int> results;
  for (int lane = 0; lane < 32; ++lane) results.push_back(of(lane));
  return results;
}

TEST(GridTest, RunsEachThreadOnceInAnyOrder) {
  for (uint64_t seed : {0, 1, 2}) {
    std::vector<int> values(1000, 5);
    RunGrid({"add_one", {8}, {128}, 0, seed},
            [&] { AddOne(values.data(), 999); });
    for (size_t i = 0; i < 999; ++i) EXPECT_EQ(values[i], 6);
    EXPECT_EQ(values[999], 5);
  }
}

TEST(GridTest, ThreadsKnowWhereTheyAre) {
  std::set<std::string> places;
  RunGrid({"places", {2, 3, 4}, {3, 2, 2}, 0, 7}, [&] {
    EXPECT_EQ(blockDim.y, 2u);
    EXPECT_EQ(gridDim.z, 4u);
    EXPECT_LT(threadIdx.x, 3u);
    EXPECT_LT(blockIdx.z, 4u);
    places.insert(emulation::WhereInGrid());
  });
  EXPECT_EQ(places.size(), 2u * 3 * 4 * 3 * 2 * 2);
  EXPECT_EQ(places.count("kernel places, block (1, 2, 3), thread (2, 1, 0)"),
            1u);
  EXPECT_STREQ(emulation::WhereInGrid(), "");
}

TEST(GridTest, TheSeedGivesTheOrder) {
  const auto order = [](uint64_t seed) {
    std::vector<unsigned> threads;
    RunGrid({"order", {4}, {64}, 0, seed},
            [&] { threads.push_back(blockIdx.x * blockDim.x + threadIdx.x); });
    return threads;
  };
  const std::vector<unsigned> by_number = order(0);
  EXPECT_TRUE(std::is_sorted(by_number.begin(), by_number.end()));
  EXPECT_EQ(order(1), order(1));
  EXPECT_NE(order(1), order(2));
  EXPECT_NE(order(1), order(0));
}

TEST(GridTest, BarriersOrderWhatTheBlockShares) {
  const std::vector<int> in = Numbers(512);
  for (uint64_t seed : {0, 1, 2, 3}) {
    std::vector<int> out(512);
    RunGrid({"reverse", {4}, {128}, 0, seed},
            [&] { Reverse(in.data(), out.data(), true); });
    for (int i = 0; i < 512; ++i) {
      EXPECT_EQ(out[static_cast<size_t>(i)], i / 128 * 128 + 127 - i % 128);
    }
    // Unwritten shared memory is all ones, whatever the previous block left.
    std::vector<int> wrong(512);
    RunGrid({"reverse", {4}, {128}, 0, seed},
            [&] { Reverse(in.data(), wrong.data(), false); });
    EXPECT_NE(wrong, out);
    EXPECT_GE(std::count(wrong.begin(), wrong.end(), -1), 4);
  }
}

TEST(GridTest, BlocksHaveDynamicSharedMemory) {
  std::vector<int> out(64);
  RunGrid({"dynamic", {2}, {32}, 32 * sizeof(int), 3}, [&] {
    auto* const shared = static_cast<int*>(emulation::DynamicSharedMemory());
    EXPECT_EQ(shared[31 - threadIdx.x] == -1 || shared[31 - threadIdx.x] >= 0,
              true);
    shared[threadIdx.x] = static_cast<int>(threadIdx.x);
    __syncthreads();
    out[blockIdx.x * 32 + threadIdx.x] = shared[31 - threadIdx.x];
  });
  for (int i = 0; i < 64; ++i)
    EXPECT_EQ(out[static_cast<size_t>(i)], 31 - i % 32);
}

TEST(GridTest, ShufflesTakeFromOtherLanes) {
  for (uint64_t seed : {0, 1, 2}) {
    EXPECT_EQ(
        OfLanes([](int lane) { return __shfl_sync(kAllLanes, lane * 10, 5); },
                seed),
        ForLanes([](int) { return 50; }));
    EXPECT_EQ(
        OfLanes(
            [](int lane) { return __shfl_sync(kAllLanes, lane, lane + 1, 8); },
            seed),
        ForLanes([](int lane) { return lane / 8 * 8 + (lane + 1) % 8; }));
    EXPECT_EQ(
        OfLanes([](int lane) { return __shfl_down_sync(kAllLanes, lane, 3u); },
                seed),
        ForLanes([](int lane) { return lane + 3 < 32 ? lane + 3 : lane; }));
    EXPECT_EQ(
        OfLanes(
            [](int lane) { return __shfl_up_sync(kAllLanes, lane, 3u, 16); },
            seed),
        ForLanes([](int lane) { return lane % 16 >= 3 ? lane - 3 : lane; }));
    EXPECT_EQ(OfLanes(
                  [](int lane) {
                    return static_cast<int>(
                        __shfl_xor_sync(kAllLanes, lane * 0.5, 6) * 2);
                  },
                  seed),
              ForLanes([](int lane) { return lane ^ 6; }));
  }
}

TEST(GridTest, VotesCountLanes) {
  EXPECT_EQ(OfLanes([](int lane) {
              return static_cast<int>(__ballot_sync(kAllLanes, lane % 4 == 1));
            }),
            ForLanes([](int) { return 0x22222222; }));
  EXPECT_EQ(OfLanes([](int lane) {
              return __any_sync(kAllLanes, lane == 9) +
                     2 * __all_sync(kAllLanes, lane < 32) +
                     4 * __all_sync(kAllLanes, lane < 31);
            }),
            ForLanes([](int) { return 3; }));
}

TEST(GridTest, PartsOfAWarpExchangeApart) {
  for (uint64_t seed : {0, 1, 2}) {
    EXPECT_EQ(OfLanes(
                  [](int lane) {
                    const unsigned mask = lane < 16 ? 0x0000FFFFu : 0xFFFF0000u;
                    int value = lane;
                    // The halves execute different numbers of ops.
                    for (int i = 0; i < (lane < 16 ? 3 : 2); ++i) {
                      value = __shfl_xor_sync(mask, value, 1);
                    }
                    __syncwarp(mask);
                    return value;
                  },
                  seed),
              ForLanes([](int lane) { return lane < 16 ? lane ^ 1 : lane; }));
  }
}

TEST(GridTest, AtomicsGiveTheOldValue) {
  int sum = 0;
  unsigned most = 0;
  float total = 0;
  std::set<int> seen;
  RunGrid({"atomics", {10}, {96}, 0, 5}, [&] {
    seen.insert(atomicAdd(&sum, 1));
    atomicMax(&most, threadIdx.x);
    atomicAdd(&total, 0.5f);
    int taken = 7;
    EXPECT_EQ(atomicCAS(&taken, 7, 8), 7);
    EXPECT_EQ(atomicCAS(&taken, 7, 9), 8);
    EXPECT_EQ(atomicExch(&taken, 1), 8);
    EXPECT_EQ(atomicMin(&taken, -1), 1);
    EXPECT_EQ(taken, -1);
  });
  EXPECT_EQ(sum, 960);
  EXPECT_EQ(seen.size(), 960u);
  EXPECT_EQ(most, 95u);
  EXPECT_EQ(total, 480);
}

TEST(GridTest, ManyThreadsAreQuick) {
  constexpr int kThreads = 65536;
  const std::vector<int> in(kThreads, 2);
  std::vector<int> out(kThreads);
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < 2; ++i) {
    RunGrid({"sum", {kThreads / 256}, {256}},
            [&] { SumOfWarp(in.data(), out.data()); });
  }
  const std::chrono::duration<double> took =
      std::chrono::steady_clock::now() - start;
  EXPECT_EQ(out, std::vector<int>(kThreads, 64));
  // Takes about 0.07 s, and a hundred times as long with ThreadSanitizer.
  EXPECT_LT(took.count(), 60);
  RecordProperty("microseconds", static_cast<int>(took.count() * 1e6));
}

// Barriers on two lines; thread 3 executes the first one.
void TwoBarriers() {
  if (threadIdx.x == 3) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}

class GridDeathTest : public testing::Test {
 protected:
  // ThreadSanitizer reports false races of fibers in a forked process.
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(GridDeathTest, ABarrierThatAThreadNeverReaches) {
  EXPECT_DEATH(
      RunGrid({"early", {2}, {64}},
              [] {
                if (threadIdx.x == 40) return;
                __syncthreads();
              }),
      "kernel early, block \\(0, 0, 0\\), thread \\(0, 0, 0\\) waits at "
      "__syncthreads of .*grid_test.cc:.* and never goes on: thread "
      "\\(40, 0, 0\\) has ended");
}

TEST_F(GridDeathTest, BarriersOfTwoPlaces) {
  EXPECT_DEATH(RunGrid({"two", {}, {64}}, TwoBarriers),
               "kernel two, block .* waits at __syncthreads of .* but thread "
               ".* at that of");
}

TEST_F(GridDeathTest, AShuffleThatALaneNeverReaches) {
  EXPECT_DEATH(RunGrid({"half", {}, {32}},
                       [] {
                         if (threadIdx.x < 16) __shfl_sync(kAllLanes, 1, 0);
                       }),
               "thread \\(0, 0, 0\\) waits in a shuffle .*mask of ffffffff and "
               "never goes on: thread \\(16, 0, 0\\) has ended");
  EXPECT_DEATH(
      RunGrid({"short", {}, {20}}, [] { __shfl_sync(kAllLanes, 1, 0); }),
      "the mask names lanes that the block does not have");
}

TEST_F(GridDeathTest, LanesThatComeToDifferentOps) {
  EXPECT_DEATH(RunGrid({"ops", {}, {32}},
                       [] {
                         if (threadIdx.x == 8) {
                           __ballot_sync(kAllLanes, 1);
                         } else {
                           __syncwarp();
                         }
                       }),
               "comes to .* but thread .* of its warp to");
}

TEST_F(GridDeathTest, AMaskWithoutTheLaneOrItsSource) {
  EXPECT_DEATH(RunGrid({"mask", {}, {32}}, [] { __syncwarp(0xFFFFu); }),
               "leaves out the lane itself, 16");
  EXPECT_DEATH(RunGrid({"source", {}, {32}},
                       [] {
                         if (threadIdx.x < 4) __shfl_sync(0xFu, 1, 9);
                       }),
               "takes from lane 9, which the mask of f leaves out");
}

TEST_F(GridDeathTest, LaunchesThatADeviceRefuses) {
  EXPECT_DEATH(RunGrid({"none", {0}, {32}}, [] {}),
               "kernel none: a grid of \\(0, 1, 1\\)");
  EXPECT_DEATH(RunGrid({"wide", {1}, {32, 33}}, [] {}),
               "kernel wide: a block of \\(32, 33, 1\\)");
  EXPECT_DEATH(RunGrid({"tall", {1, 65536}, {32}}, [] {}), "a grid of");
  EXPECT_DEATH(RunGrid({"fat", {1}, {32}},
                       [] {
                         CH_SHARED(much, char[40000]);
                         CH_SHARED(more, char[10000]);
                         much[0] = more[0];
                       }),
               "kernel fat, .* a block has no more shared memory");
}

TEST_F(GridDeathTest, AccessesThatAreNotAligned) {
  alignas(16) static float memory[8] = {1, 2, 3, 4};
  RunGrid({"aligned", {}, {1}}, [] {
    emulation::StoreValue(memory + 4, emulation::LoadValue<double>(memory + 2));
    EXPECT_EQ(emulation::LoadValue<float>(memory + 5), 4);
  });
  EXPECT_DEATH(RunGrid({"askew", {}, {1}},
                       [] {
                         emulation::StoreValue(
                             memory, emulation::LoadValue<double>(memory + 1));
                       }),
               "kernel askew, .* an access of 8 bytes at .* is not aligned");
}

TEST_F(GridDeathTest, OpsOutsideOfKernels) {
  EXPECT_DEATH(__syncthreads(), "__syncthreads outside of a kernel");
}

}  // namespace
}  // namespace crosshatch
