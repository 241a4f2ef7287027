// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/nccl/nccl_plan.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::internal {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int kSize = 2;
constexpr NcclOptions kFast = {.least_collective_bytes = 64};

float memory[1000];

SegmentList At(int64_t begin, int64_t count) {
  return {{.data = &memory[begin], .run_elems = count}};
}

Collective AllGatherOf(std::vector<SegmentList> recv) {
  return {.kind = CollectiveKind::kAllGather,
          .send = {At(500, 1)},
          .recv = std::move(recv)};
}

NcclWay WayOf(const Collective& c, const NcclOptions& options = kFast) {
  return ChooseNcclWay(c, kSize, CutsOf(c).is_consecutive, options);
}

TEST(NcclPlanTest, LargeAndEvenGoByCollectives) {
  EXPECT_EQ(WayOf(AllGatherOf({At(0, 8), At(8, 8)})), NcclWay::kCollective);
  EXPECT_EQ(WayOf(AllGatherOf({At(0, 7), At(7, 7)})), NcclWay::kSendAndReceive)
      << "56 bytes";
  EXPECT_EQ(WayOf(AllGatherOf({At(0, 8), At(8, 9)})), NcclWay::kSendAndReceive)
      << "uneven";
  EXPECT_EQ(WayOf(AllGatherOf({At(0, 8), At(9, 8)})), NcclWay::kSendAndReceive)
      << "a gap";
  EXPECT_EQ(WayOf(AllGatherOf({At(8, 8), At(0, 8)})), NcclWay::kSendAndReceive)
      << "another order";
}

TEST(NcclPlanTest, SumsInOrderGoByMessages) {
  for (int64_t count : {15, 16}) {
    Collective c{.kind = CollectiveKind::kAllReduce,
                 .send = {At(0, count)},
                 .recv = {At(0, count)}};
    EXPECT_EQ(WayOf(c),
              count == 16 ? NcclWay::kCollective : NcclWay::kSendAndReceive);
    EXPECT_EQ(WayOf(c, {.deterministic = true, .least_collective_bytes = 64}),
              NcclWay::kSendAndReceive);
  }
}

TEST(NcclPlanTest, WhatNcclReducesInAnotherWayGoesByMessages) {
  const auto way_of = [](DType dtype, ReduceOp op, double scale) {
    return WayOf({.kind = CollectiveKind::kAllReduce,
                  .dtype = dtype,
                  .reduce_op = op,
                  .scale = scale,
                  .send = {At(0, 100)},
                  .recv = {At(0, 100)}});
  };
  for (DType dtype : {kFloat32, kFloat64, kBFloat16, kFloat16, kInt32}) {
    EXPECT_EQ(way_of(dtype, ReduceOp::kSum, 1), NcclWay::kCollective);
  }
  EXPECT_EQ(way_of(kFloat32, ReduceOp::kSum, 0.5), NcclWay::kCollective);
  EXPECT_EQ(way_of(kInt64, ReduceOp::kMax, 1), NcclWay::kCollective);
  EXPECT_EQ(way_of(kUInt16, ReduceOp::kSum, 1), NcclWay::kSendAndReceive);
  EXPECT_EQ(way_of(kFloat32, ReduceOp::kMax, 1), NcclWay::kSendAndReceive);
  EXPECT_EQ(way_of(kFloat64, ReduceOp::kMin, 1), NcclWay::kSendAndReceive);
  EXPECT_EQ(way_of(kFloat16, ReduceOp::kSum, 0.5), NcclWay::kSendAndReceive);
  EXPECT_EQ(way_of(kBFloat16, ReduceOp::kAvg, 1), NcclWay::kSendAndReceive);
}

TEST(NcclPlanTest, CutsAreTheRunsOfTheListsThatAllHave) {
  Segment columns{
      .data = memory, .run_elems = 2, .runs = 3, .stride_elems = 10};
  const Collective gather = AllGatherOf({{columns}, At(100, 6)});
  const NcclCuts cuts = CutsOf(gather);
  EXPECT_THAT(cuts.runs, ElementsAre(ElementsAre(2, 2, 2), ElementsAre(6)));
  EXPECT_FALSE(cuts.is_consecutive);
  EXPECT_NE(cuts.hash, 0u);
  // At any address.
  columns.data = &memory[7];
  EXPECT_EQ(CutsOf(AllGatherOf({{columns}, At(300, 6)})).hash, cuts.hash);
  // Split into other runs.
  EXPECT_NE(CutsOf(AllGatherOf({At(0, 6), At(100, 6)})).hash, cuts.hash);
  EXPECT_NE(CutsOf(AllGatherOf({At(0, 6), At(6, 6)})).hash,
            CutsOf(AllGatherOf({At(0, 6), At(100, 6)})).hash);
}

// Like the parameters of a block on many ranks.
TEST(NcclPlanTest, ManyListsOfFewRunsAreCut) {
  const Segment parameters{
      .data = memory, .run_elems = 1, .runs = 9, .stride_elems = 2};
  const NcclCuts cuts =
      CutsOf(AllGatherOf(std::vector<SegmentList>(64, {parameters})));
  EXPECT_EQ(cuts.runs.size(), 64u);
  EXPECT_EQ(cuts.runs[63].size(), 9u);
  EXPECT_NE(cuts.hash, 0u);
}

TEST(NcclPlanTest, TooManyRunsAreNotWorthAMessageEach) {
  const Segment columns{
      .data = memory, .run_elems = 1, .runs = 300, .stride_elems = 2};
  const NcclCuts cuts = CutsOf(AllGatherOf({{columns}, At(600, 300)}));
  EXPECT_THAT(cuts.runs, IsEmpty());
  EXPECT_EQ(cuts.hash, 0u);
  EXPECT_FALSE(cuts.is_consecutive);
}

}  // namespace
}  // namespace crosshatch::internal
