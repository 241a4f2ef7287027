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
  return ChooseNcclWay(c, CutsOf(c), kSize, options);
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
  EXPECT_EQ(way_of(kBFloat16, ReduceOp::kSum, 0.25), NcclWay::kCollective);
  EXPECT_EQ(way_of(kBFloat16, ReduceOp::kSum, 0.3), NcclWay::kSendAndReceive);
  EXPECT_EQ(way_of(kBFloat16, ReduceOp::kAvg, 1), NcclWay::kSendAndReceive);
}

TEST(NcclPlanTest, CutsAreTheRunsOfTheListsThatAllHave) {
  Segment columns{
      .data = memory, .run_elems = 2, .runs = 3, .stride_elems = 10};
  const Collective gather = AllGatherOf({{columns}, At(100, 6)});
  const NcclCuts cuts = CutsOf(gather);
  EXPECT_THAT(cuts.runs, ElementsAre(ElementsAre(2, 2, 2), ElementsAre(6)));
  EXPECT_THAT(cuts.strips, IsEmpty());
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

// Three parameters of a group: rows that divide, rows that do not, and a vector
// that divides. The second one's rows are sent.
TEST(NcclPlanTest, EvenParametersOfAGroupAreStrips) {
  const auto at = [](int64_t begin, int64_t count) {
    return At(begin, count)[0];
  };
  Collective gather = AllGatherOf(
      {{at(0, 8), at(16, 3), at(32, 2)}, {at(8, 8), at(19, 2), at(34, 2)}});
  gather.send = {At(500, 12)};
  const NcclCuts cuts = CutsOf(gather);
  ASSERT_EQ(cuts.strips.size(), 2u);
  EXPECT_EQ(cuts.strips[0].elems, 8);
  EXPECT_EQ(cuts.strips[1].elems, 2);
  EXPECT_EQ(WayOf(gather), NcclWay::kCollective);

  const NcclParts split = SplitOffStrips(gather, cuts, /*me=*/1);
  ASSERT_EQ(split.parts.size(), 2u);
  EXPECT_EQ(split.parts[0].all, reinterpret_cast<std::byte*>(&memory[0]));
  EXPECT_EQ(split.parts[1].all, reinterpret_cast<std::byte*>(&memory[32]));
  EXPECT_EQ(split.parts[0].mine[0].data, &memory[500]);
  EXPECT_EQ(split.parts[1].mine[0].data, &memory[510]);
  EXPECT_EQ(split.parts[1].elems, 2);
  // Rank 1's rows of the second parameter are between them.
  EXPECT_THAT(split.rest_cuts.runs,
              ElementsAre(ElementsAre(3), ElementsAre(2)));
  EXPECT_EQ(split.rest.send[0][0].data, &memory[508]);
  EXPECT_EQ(split.rest.recv[1][0].data, &memory[19]);
}

// A rank without rows of a parameter has one run less.
TEST(NcclPlanTest, StripsSkipParametersThatARankLacks) {
  const auto at = [](int64_t begin, int64_t count) {
    return At(begin, count)[0];
  };
  const Collective gather = AllGatherOf({{at(0, 1), at(16, 4)}, {at(20, 4)}});
  const NcclCuts cuts = CutsOf(gather);
  ASSERT_EQ(cuts.strips.size(), 1u);
  EXPECT_THAT(cuts.strips[0].runs, ElementsAre(1, 0));
}

// Which run of the second list follows the first list differs by address alone.
TEST(NcclPlanTest, HashIdentifiesTheRunsOfAStripInEveryList) {
  const auto cuts_of = [](int64_t first, int64_t begin, int64_t end) {
    return CutsOf(
        AllGatherOf({At(first, 4), {At(begin, 4)[0], At(end, 4)[0]}}));
  };
  const NcclCuts joins_begin = cuts_of(0, 4, 12);
  const NcclCuts joins_end = cuts_of(8, 0, 12);
  ASSERT_EQ(joins_begin.strips.size(), 1u);
  ASSERT_EQ(joins_end.strips.size(), 1u);
  EXPECT_THAT(joins_begin.strips[0].runs, ElementsAre(0, 0));
  EXPECT_THAT(joins_end.strips[0].runs, ElementsAre(0, 1));
  EXPECT_EQ(joins_begin.runs, joins_end.runs);
  EXPECT_NE(joins_begin.hash, joins_end.hash);
}

TEST(NcclPlanTest, RowsOfASplitColumnAreStrips) {
  const Segment left{
      .data = memory, .run_elems = 4, .runs = 3, .stride_elems = 8};
  Segment right = left;
  right.data = &memory[4];
  EXPECT_EQ(CutsOf(AllGatherOf({{left}, {right}})).strips.size(), 3u);
  right.data = &memory[5];
  EXPECT_THAT(CutsOf(AllGatherOf({{left}, {right}})).strips, IsEmpty());
}

// Only what is sent needs memory for the others' summands.
TEST(NcclPlanTest, StripsNeedNoMemoryForSummands) {
  const auto at = [](int64_t begin, int64_t count) {
    return At(begin, count)[0];
  };
  Collective reduce{.kind = CollectiveKind::kReduceScatter,
                    .send = {{at(0, 8), at(16, 3)}, {at(8, 8), at(19, 2)}},
                    .recv = {At(500, 11)}};
  EXPECT_EQ(SummandBytes(reduce, kSize, /*me=*/0, kFast), 3 * 4);
  EXPECT_EQ(SummandBytes(reduce, kSize, 0, {.deterministic = true}), 11 * 4);
}

TEST(NcclPlanTest, TooManyRunsAreNotWorthAMessageEach) {
  const Segment columns{
      .data = memory, .run_elems = 1, .runs = 300, .stride_elems = 2};
  const NcclCuts cuts = CutsOf(AllGatherOf({{columns}, At(600, 300)}));
  EXPECT_THAT(cuts.runs, IsEmpty());
  EXPECT_EQ(cuts.hash, 0u);
  EXPECT_THAT(cuts.strips, IsEmpty());
}

}  // namespace
}  // namespace crosshatch::internal
