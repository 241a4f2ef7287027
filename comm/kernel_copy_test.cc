// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/kernel_copy.h"

#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "crosshatch/tensor/backends/cpu/cpu_backend.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using ::testing::ElementsAreArray;

thread_local int kernels_run = 0;

// Returns the CPU's kernels with a counter.
const KernelTable& Counting() {
  static const KernelTable table = [] {
    KernelTable counting = CpuBackend().kernels();
    counting.copy = [](const CopyArgs& args, KernelContext& context) {
      ++kernels_run;
      CpuBackend().kernels().copy(args, context);
    };
    return counting;
  }();
  return table;
}

// Returns the number of kernels.
int Copy(const SegmentList& from, const SegmentList& to, int64_t count,
         DType dtype = kInt32) {
  KernelContext context;
  kernels_run = 0;
  CopyByKernels(SegmentCursor(from, SizeOf(dtype)),
                SegmentCursor(to, SizeOf(dtype)), count, dtype, Counting(),
                context);
  return kernels_run;
}

SegmentList RandomList(std::mt19937& random, int32_t* memory, int64_t elems) {
  SegmentList list;
  while (elems > 0) {
    memory += random() % 3;
    Segment s{.data = memory,
              .run_elems = static_cast<int64_t>(random() % 6),
              .runs = static_cast<int64_t>(random() % 4)};
    s.stride_elems = s.run_elems + static_cast<int64_t>(random() % 3);
    memory += s.runs * s.stride_elems + s.run_elems;
    elems -= s.elems();
    list.push_back(s);
  }
  return list;
}

TEST(KernelCopyTest, CopiesWhatTheHostDoes) {
  for (uint32_t seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    const auto count = static_cast<int64_t>(random() % 60);
    std::vector<int32_t> source(2000), target(2000), expected(2000);
    std::iota(source.begin(), source.end(), 1);
    const SegmentList from = RandomList(random, source.data(), count);
    std::mt19937 again = random;
    const SegmentList to = RandomList(random, target.data(), count);
    const SegmentList host_to = RandomList(again, expected.data(), count);
    Copy(from, to, count);
    CopySegments(SegmentCursor(from, 4), SegmentCursor(host_to, 4), count, 4);
    ASSERT_THAT(target, ElementsAreArray(expected)) << "seed " << seed;
  }
}

TEST(KernelCopyTest, TakesOneKernelWhereBothSidesLieEvenly) {
  std::vector<int32_t> memory(100);
  const SegmentList columns = {
      {.data = memory.data(), .run_elems = 2, .runs = 5, .stride_elems = 7}};
  const SegmentList packed = {{.data = &memory[50], .run_elems = 10}};
  EXPECT_EQ(Copy(columns, packed, 10), 1);
  EXPECT_EQ(Copy(packed, columns, 10), 1);
  // The last run is truncated.
  EXPECT_EQ(Copy(columns, packed, 9), 2);
}

TEST(KernelCopyTest, LeavesWhatIsThereAlready) {
  std::vector<int32_t> memory(100);
  const SegmentList list = {
      {.data = memory.data(), .run_elems = 2, .runs = 5, .stride_elems = 7}};
  EXPECT_EQ(Copy(list, list, 10), 0);
  EXPECT_EQ(Copy(list, list, 0), 0);
}

TEST(KernelCopyTest, KeepsTheBitsOfAllNumbers) {
  // Quiet and signalling NaNs with payloads.
  const std::vector<uint16_t> source = {0x7F81, 0xFFA3, 0x7FC1, 0x8000, 0x0001};
  std::vector<uint16_t> target(source.size());
  for (DType dtype : {kBFloat16, kFloat16}) {
    target.assign(source.size(), 0);
    Copy({{.data = const_cast<uint16_t*>(source.data()), .run_elems = 5}},
         {{.data = target.data(), .run_elems = 5}}, 5, dtype);
    EXPECT_THAT(target, ElementsAreArray(source));
  }
}

TEST(KernelCopyDeathTest, NamesAListThatEndsTooEarly) {
  std::vector<int32_t> memory(10);
  const SegmentList list = {{.data = memory.data(), .run_elems = 4}};
  const SegmentList other = {{.data = &memory[5], .run_elems = 4}};
  EXPECT_DEATH(Copy(list, other, 6), "ends 2 elements too early");
}

}  // namespace
}  // namespace crosshatch
