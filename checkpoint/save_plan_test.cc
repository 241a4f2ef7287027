// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/checkpoint/save_plan.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "crosshatch/dtensor/layout/layout.h"
#include "crosshatch/dtensor/layout/placement.h"
#include "crosshatch/mesh/mesh_layout.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::checkpoint {
namespace {

using ::testing::HasSubstr;

TensorSpec Plain(const std::string& name, Shape sizes,
                 DType dtype = DType::kFloat32) {
  return {.name = name, .dtype = dtype, .sizes = std::move(sizes)};
}

TensorSpec Laid(const std::string& name, Shape sizes, const MeshLayout& mesh,
                const std::vector<Placement>& placements,
                DType dtype = DType::kFloat32) {
  const auto layout =
      Layout::FromPlacements(mesh, static_cast<int>(sizes.size()), placements);
  EXPECT_TRUE(layout.ok()) << layout.status();
  return {.name = name,
          .dtype = dtype,
          .sizes = std::move(sizes),
          .layout = *layout};
}

std::string PlanOf(const std::vector<TensorSpec>& tensors, int world_size) {
  const auto plan = PlanSave(tensors, world_size);
  return plan.ok() ? plan->ToString() : plan.status().ToString();
}

TEST(SavePlanTest, EachRankWritesItsShardsAndReplicasAreWrittenOnce) {
  const MeshLayout mesh = *MeshLayout::Create({{"fsdp", 2}, {"tp", 2}});
  // 5 rows over both axes: 2, 1 | 1, 1.
  EXPECT_EQ(PlanOf({Laid("w", {5, 4}, mesh, {Shard(0), Shard(1)}),
                    Laid("uneven", {5, 2}, mesh, {Shard(0), Shard(0)}),
                    Laid("norm", {8}, mesh, {Shard(0), Replicate()}),
                    Plain("step", {}, DType::kInt64), Plain("none", {3, 0})},
                   4),
            "rank 0: 40 bytes: uneven[0:2, 0:2] w[0:3, 0:2]\n"
            "rank 1: 48 bytes: norm[0:4] uneven[2:3, 0:2] w[0:3, 2:4]\n"
            "rank 2: 40 bytes: norm[4:8] uneven[3:4, 0:2] w[3:5, 0:2]\n"
            "rank 3: 32 bytes: step uneven[4:5, 0:2] w[3:5, 2:4]\n");
}

TEST(SavePlanTest, FsdpOverTpOnOneDimIsAGridToo) {
  const MeshLayout mesh = *MeshLayout::Create({{"fsdp", 2}, {"tp", 2}});
  const auto plan =
      PlanSave({Laid("w", {10}, mesh, {StridedShard(0, 2), Shard(0)})}, 4);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->index.tensors[0].cuts,
            (std::vector<std::vector<int64_t>>{{0, 3, 5, 8, 10}}));
  EXPECT_EQ(plan->ToString(),
            "rank 0: 12 bytes: w[0:3]\n"
            "rank 1: 12 bytes: w[5:8]\n"
            "rank 2: 8 bytes: w[3:5]\n"
            "rank 3: 8 bytes: w[8:10]\n");
  EXPECT_EQ(plan->index.tensors[0].files, (std::vector<int>{0, 2, 1, 3}));
  EXPECT_EQ(plan->FileOf(3), 3);
}

TEST(SavePlanTest, RanksWithNothingToWriteHaveNoFile) {
  const auto plan = PlanSave({Plain("a", {2}), Plain("b", {4})}, 8);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->index.files,
            (std::vector<std::string>{"state-00001-of-00002.safetensors",
                                      "state-00002-of-00002.safetensors"}));
  EXPECT_EQ(plan->FileOf(0), 0);
  EXPECT_EQ(plan->FileOf(2), -1);
  EXPECT_EQ(plan->ToString(), "rank 0: 16 bytes: b\nrank 1: 8 bytes: a\n");
}

TEST(SavePlanTest, BytesAreBalancedOverReplicas) {
  // 4 replicas of shards of uneven sizes: no rank writes more than the mean and
  // the largest shard.
  const MeshLayout mesh = *MeshLayout::Create({{"dp", 4}, {"fsdp", 3}});
  std::vector<TensorSpec> tensors;
  int64_t total = 0;
  int64_t largest = 0;
  for (int64_t i = 1; i <= 40; ++i) {
    tensors.push_back(
        Laid(std::to_string(i), {i, 5}, mesh, {Replicate(), Shard(0)}));
    total += i * 5 * 4;
    largest = std::max(largest, (i + 2) / 3 * 5 * 4);
  }
  const auto plan = PlanSave(tensors, 12);
  ASSERT_TRUE(plan.ok()) << plan.status();
  int64_t written = 0;
  for (int rank = 0; rank < 12; ++rank) {
    written += plan->BytesOf(rank);
    EXPECT_LE(plan->BytesOf(rank), total / 12 + largest) << rank;
  }
  EXPECT_EQ(written, total);
}

TEST(SavePlanTest, EveryCellIsInTheFileOfItsWriter) {
  const MeshLayout mesh = *MeshLayout::Create({{"a", 2}, {"b", 3}});
  const auto plan =
      PlanSave({Laid("x", {7, 9}, mesh, {Shard(1), Shard(0)}),
                Laid("y", {7}, mesh, {Replicate(), Shard(0)}), Plain("z", {5})},
               6);
  ASSERT_TRUE(plan.ok()) << plan.status();
  size_t cells = 0;
  for (int rank = 0; rank < 6; ++rank) {
    for (const PlannedCell& c : plan->by_rank[rank]) {
      EXPECT_EQ(plan->index.tensors[c.tensor].files[c.cell],
                plan->FileOf(rank));
      ++cells;
    }
  }
  EXPECT_EQ(cells, 6u + 3u + 1u);
}

TEST(SavePlanTest, RejectsInvalidStates) {
  const MeshLayout mesh = *MeshLayout::Create({{"tp", 2}});
  const absl::Status partial =
      PlanSave({Laid("w", {4}, mesh, {Partial()})}, 2).status();
  EXPECT_TRUE(absl::IsInvalidArgument(partial));
  EXPECT_THAT(std::string(partial.message()), HasSubstr("\"w\" is partial"));
  EXPECT_THAT(PlanOf({Laid("w", {4}, mesh, {Shard(0)})}, 1),
              HasSubstr("not among the 1 ranks"));
  EXPECT_THAT(PlanOf({Plain("w", {4}), Plain("w", {3})}, 1),
              HasSubstr("two tensors are named \"w\""));
}

}  // namespace
}  // namespace crosshatch::checkpoint
