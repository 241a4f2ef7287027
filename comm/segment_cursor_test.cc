// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/segment_cursor.h"

#include <numeric>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace crosshatch {
namespace {

std::vector<int64_t> Offsets(const SegmentList& list, const int32_t* base) {
  std::vector<int64_t> offsets;
  for (const Segment& s : list) {
    const int64_t begin = static_cast<const int32_t*>(s.data) - base;
    for (int64_t run = 0; run < s.runs; ++run) {
      for (int64_t i = 0; i < s.run_elems; ++i) {
        offsets.push_back(begin + run * s.stride_elems + i);
      }
    }
  }
  return offsets;
}

class Random {
 public:
  explicit Random(uint32_t seed) : random_(seed) {}
  int64_t Below(int64_t n) { return static_cast<int64_t>(random_() % n); }

  /// Returns a list of disjoint segments in memory from `base` on.
  SegmentList List(int32_t* base, int64_t min_elems) {
    SegmentList list;
    int64_t elems = 0;
    while (elems < min_elems) {
      base += Below(3);
      Segment s{.data = base, .run_elems = Below(6), .runs = Below(4)};
      s.stride_elems = s.run_elems + Below(2) * Below(3);
      base += s.runs * s.stride_elems + s.run_elems;
      elems += s.elems();
      list.push_back(s);
    }
    return list;
  }

 private:
  std::mt19937 random_;
};

TEST(SegmentCursor, WalksThroughRandomLists) {
  std::vector<int32_t> memory(4000);
  for (uint32_t seed = 0; seed < 200; ++seed) {
    Random random(seed);
    const SegmentList list = random.List(memory.data(), random.Below(60));
    const std::vector<int64_t> offsets = Offsets(list, memory.data());
    const auto count = static_cast<int64_t>(offsets.size());
    int64_t at = random.Below(count + 1);
    SegmentCursor cursor(list, sizeof(int32_t), at);
    while (at < count) {
      ASSERT_GT(cursor.contiguous(), 0) << "seed " << seed;
      const int64_t n = 1 + random.Below(cursor.contiguous());
      for (int64_t i = 0; i < n; ++i) {
        const auto* element =
            reinterpret_cast<const int32_t*>(cursor.data()) + i;
        ASSERT_EQ(element - memory.data(), offsets[at + i]) << "seed " << seed;
      }
      cursor.Advance(n);
      at += n;
    }
    ASSERT_EQ(cursor.contiguous(), 0);
  }
}

TEST(SegmentCursor, SkipsOverRunsAndSegments) {
  Random random(2);
  std::vector<int32_t> memory(1000);
  for (int round = 0; round < 100; ++round) {
    const SegmentList list = random.List(memory.data(), 20);
    const std::vector<int64_t> offsets = Offsets(list, memory.data());
    const auto count = static_cast<int64_t>(offsets.size());
    SegmentCursor cursor(list, sizeof(int32_t));
    for (int64_t at = 0; at < count;) {
      const int64_t skipped = 1 + random.Below(count - at);
      cursor.Skip(skipped);
      at += skipped;
      const SegmentCursor there(list, sizeof(int32_t), at);
      EXPECT_EQ(cursor.data(), there.data());
      EXPECT_EQ(cursor.contiguous(), there.contiguous());
    }
  }
}

TEST(SegmentCursor, JoinsRunsThatTouch) {
  int32_t memory[12];
  const SegmentList list = {
      {.data = memory, .run_elems = 3, .runs = 4, .stride_elems = 3}};
  EXPECT_EQ(SegmentCursor(list, sizeof(int32_t), 2).contiguous(), 10);
}

TEST(CopySegments, CopiesBetweenAnyTwoLists) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    Random random(seed);
    std::vector<int32_t> source(4000), target(4000, -1);
    std::iota(source.begin(), source.end(), 0);
    const SegmentList from = random.List(source.data(), 50);
    const SegmentList to = random.List(target.data(), 50);
    const std::vector<int64_t> read = Offsets(from, source.data());
    const std::vector<int64_t> written = Offsets(to, target.data());
    std::vector<int32_t> want = target;
    for (int64_t i = 0; i < 50; ++i) want[written[i]] = source[read[i]];
    CopySegments(SegmentCursor(from, 4), SegmentCursor(to, 4), 50, 4);
    ASSERT_EQ(target, want) << "seed " << seed;
  }
}

TEST(SegmentCursorDeathTest, SkipsNoMoreThanThereIs) {
  int32_t memory[4];
  const SegmentList list = {{.data = memory, .run_elems = 4}};
  SegmentCursor cursor(list, sizeof(int32_t));
  EXPECT_DEATH(cursor.Skip(5), "ends 1 elements too early");
}

TEST(CopySegmentsDeathTest, StopsAtTheEndOfAList) {
  int32_t memory[4] = {};
  const SegmentList list = {{.data = memory, .run_elems = 4}};
  EXPECT_DEATH(
      CopySegments(SegmentCursor(list, 4), SegmentCursor(list, 4, 2), 4, 4),
      "a list of segments ends 2 elements too early");
}

}  // namespace
}  // namespace crosshatch
