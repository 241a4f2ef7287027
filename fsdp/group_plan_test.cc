// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/fsdp/group_plan.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace crosshatch::fsdp {
namespace {

std::vector<Interval> Chunks(int64_t n, int ranks) {
  const int64_t chunk = (n + ranks - 1) / ranks;
  std::vector<Interval> intervals;
  for (int r = 0; r < ranks; ++r) {
    intervals.push_back({std::min(n, r * chunk), std::min(n, (r + 1) * chunk)});
  }
  return intervals;
}

// Returns the elements of `segments` of a float buffer in order.
std::vector<float> Read(const SegmentList& segments) {
  std::vector<float> values;
  for (const Segment& s : segments) {
    const float* data = static_cast<const float*>(s.data);
    for (int64_t run = 0; run < s.runs; ++run) {
      values.insert(values.end(), data + run * s.stride_elems,
                    data + run * s.stride_elems + s.run_elems);
    }
  }
  return values;
}

TEST(GroupPlanTest, PiecesOfAFullBufferPartitionItByShard) {
  for (int ranks : {1, 2, 3, 4, 7}) {
    for (int64_t rows : {0, 1, 3, 8}) {
      for (int dim : {0, 1, 2}) {
        const Shape shape = {rows, 5, 3};
        const Shape other = {4};
        const GroupPlan plan(
            {{"a", shape, dim, Chunks(shape[static_cast<size_t>(dim)], ranks)},
             {"b", other, 0, Chunks(4, ranks)}},
            ranks);
        std::vector<float> full(static_cast<size_t>(plan.full_elems()));
        std::iota(full.begin(), full.end(), 0.0f);
        int64_t total = 0;
        for (int r = 0; r < ranks; ++r) {
          // The obvious shard: every index whose coordinate is in the interval.
          std::vector<float> expected;
          const Interval piece =
              plan.parameter(0).intervals[static_cast<size_t>(r)];
          for (int64_t i = 0; i < NumElements(shape); ++i) {
            const int64_t at[] = {i / 15, i / 3 % 5, i % 3};
            if (at[dim] >= piece.begin && at[dim] < piece.end) {
              expected.push_back(static_cast<float>(i));
            }
          }
          const Interval b =
              plan.parameter(1).intervals[static_cast<size_t>(r)];
          for (int64_t i = b.begin; i < b.end; ++i) {
            expected.push_back(static_cast<float>(plan.full_offset(1) + i));
          }
          EXPECT_EQ(Read(plan.FullSegments(full.data(), kFloat32, r)), expected)
              << plan.ToString();
          EXPECT_EQ(static_cast<int64_t>(expected.size()), plan.shard_elems(r));
          EXPECT_EQ(NumElements(plan.ShardShape(0, r)),
                    plan.shard_offset(1, r) - plan.shard_offset(0, r));
          total += plan.shard_elems(r);
        }
        // There is no padding.
        EXPECT_EQ(total, NumElements(shape) + 4);
      }
    }
  }
}

TEST(GroupPlanTest, FullParametersStartAtCacheLines) {
  const GroupPlan plan(
      {{"a", {3}, 0, Chunks(3, 2)}, {"b", {17}, 0, Chunks(17, 2)}}, 2);
  EXPECT_EQ(plan.full_offset(0), 0);
  EXPECT_EQ(plan.full_offset(1), 16);
  EXPECT_EQ(plan.full_elems(), 48);
}

TEST(GroupPlanTest, PrintsTheIntervals) {
  const GroupPlan plan({{"w", {5, 2}, 0, Chunks(5, 2)}}, 2);
  EXPECT_EQ(plan.ToString(), "  w [5, 2] dim 0: 0:3 3:5\n");
}

TEST(GroupPlanTest, CountsTheIntervalsOfManyRanks) {
  const GroupPlan plan({{"w", {1030, 2}, 0, Chunks(1030, 512)},
                        {"b", {512}, 0, Chunks(512, 512)}},
                       512);
  // 343 shards of 3 rows, one of 1 row and 168 empty ones.
  EXPECT_EQ(plan.ToString(),
            "  w [1030, 2] dim 0: 343 x 3, 1 x 1, 168 x 0\n"
            "  b [512] dim 0: 512 x 1\n");
  const std::string all = plan.ToString(PlanDetail::kEveryRank);
  EXPECT_EQ(std::count(all.begin(), all.end(), ':'), 2 * (512 + 1));
  const GroupPlan eight({{"w", {8}, 0, Chunks(8, 8)}}, 8);
  EXPECT_EQ(eight.ToString(),
            "  w [8] dim 0: 0:1 1:2 2:3 3:4 4:5 5:6 6:7 7:8\n");
}

}  // namespace
}  // namespace crosshatch::fsdp
