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

// The shard buffers of a ragged group are pieces of the full buffer, in which
// each rank finds its rows.
TEST(GroupPlanTest, RaggedShardsArePiecesOfTheFullBuffer) {
  for (int ranks : {1, 2, 3, 4, 8}) {
    for (int64_t rows : {0, 1, 5, 16, 64}) {
      for (int64_t block : {1, 3, 100}) {
        const std::vector<RaggedParameter> sizes = {
            {rows, 16, block}, {7, 1, block}, {12, 16, block}};
        RaggedPlan ragged = PlanRaggedShards(sizes, ranks);
        std::vector<PlannedParameter> parameters;
        for (size_t i = 0; i < sizes.size(); ++i) {
          PlannedParameter& p = parameters.emplace_back();
          p = {std::string(1, static_cast<char>('a' + i)),
               {sizes[i].rows, sizes[i].row_elems},
               0,
               {}};
          int64_t begin = 0;
          for (const int64_t cut : ragged.cuts[i]) {
            p.intervals.push_back({begin, cut});
            begin = cut;
          }
          p.intervals.push_back({begin, sizes[i].rows});
        }
        const GroupPlan plan = GroupPlan::Ragged(
            parameters, ranks, ragged.offsets, ragged.slot_elems);
        SCOPED_TRACE(plan.DescribePieces() + "\n" + plan.ToString());
        std::vector<float> full(static_cast<size_t>(plan.full_elems()));
        std::iota(full.begin(), full.end(), 0.0f);
        float* next = full.data();
        for (int r = 0; r < ranks; ++r) {
          const SegmentList piece = plan.FullSegments(full.data(), kFloat32, r);
          EXPECT_LE(piece.size(), 1u);
          const std::vector<float> shard = Read(piece);
          EXPECT_EQ(static_cast<int64_t>(shard.size()), plan.shard_elems(r));
          if (ragged.slot_elems != 0) {
            EXPECT_EQ(plan.shard_elems(r), ragged.slot_elems);
          }
          if (!piece.empty()) {
            EXPECT_EQ(piece[0].data, next);
            next += shard.size();
          }
          for (int i = 0; i < 3; ++i) {
            const auto first = shard.begin() + static_cast<std::ptrdiff_t>(
                                                   plan.shard_offset(i, r));
            const int64_t begin =
                plan.full_offset(i) +
                plan.parameter(i).intervals[static_cast<size_t>(r)].begin *
                    sizes[static_cast<size_t>(i)].row_elems;
            for (int64_t e = 0; e < NumElements(plan.ShardShape(i, r)); ++e) {
              EXPECT_EQ(first[e], static_cast<float>(begin + e));
            }
          }
        }
      }
    }
  }
}

TEST(GroupPlanTest, CoarserRaggedShardsAreJoinedPieces) {
  const auto plan_of = [](std::vector<Interval> a, std::vector<Interval> b) {
    return GroupPlan::Ragged(
        {{"a", {6, 16}, 0, std::move(a)}, {"b", {2, 16}, 0, std::move(b)}}, 4,
        {0, 96}, /*slot_elems=*/32);
  };
  const GroupPlan plan = plan_of({{0, 2}, {2, 4}, {4, 6}, {6, 6}},
                                 {{0, 0}, {0, 0}, {0, 0}, {0, 2}});
  EXPECT_EQ(plan.DescribePieces(), "ragged: 4 pieces of 32 elements");
  const GroupPlan half = plan.Coarser(2);
  EXPECT_EQ(half.DescribePieces(), "ragged: 2 pieces of 64 elements");
  EXPECT_EQ(half.ToString(),
            "  a [6, 16] dim 0: 0:4 4:6\n"
            "  b [2, 16] dim 0: 0:0 0:2\n");
  EXPECT_EQ(half.shard_offset(1, 1), 32);
}

TEST(GroupPlanTest, FullParametersStartAtCacheLines) {
  const GroupPlan plan(
      {{"a", {3}, 0, Chunks(3, 2)}, {"b", {17}, 0, Chunks(17, 2)}}, 2);
  EXPECT_EQ(plan.full_offset(0), 0);
  EXPECT_EQ(plan.full_offset(1), 16);
  EXPECT_EQ(plan.full_elems(), 48);
}

// A dry run has no memory. Its segments are adjacent where those of a run are.
TEST(GroupPlanTest, DryRunsHaveAddresses) {
  const GroupPlan plan(
      {{"a", {4}, 0, Chunks(4, 2)}, {"b", {17}, 0, Chunks(17, 2)}}, 2);
  std::vector<float> full(static_cast<size_t>(plan.full_elems()));
  const auto distances = [&](void* buffer) {
    const SegmentList first = plan.FullSegments(buffer, kFloat32, 0);
    std::vector<std::ptrdiff_t> all;
    for (int r = 0; r < 2; ++r) {
      for (const Segment& s : plan.FullSegments(buffer, kFloat32, r)) {
        all.push_back(static_cast<float*>(s.data) -
                      static_cast<float*>(first[0].data));
      }
    }
    return all;
  };
  EXPECT_EQ(distances(nullptr), distances(full.data()));
  EXPECT_NE(plan.ShardSegments(nullptr, 0)[0].data, nullptr);
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
