// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/layers/expert_routing.h"

#include <cstdint>
#include <optional>
#include <vector>

#include "gtest/gtest.h"

namespace crosshatch::nn {
namespace {

using Numbers = std::vector<int64_t>;
using Runs = std::vector<std::vector<RowRun>>;

// Three experts, two of them on rank 0. Each of two tokens makes two choices.
constexpr int64_t kExperts = 3;
const Numbers kOfRank0 = {0, 2, 1, 2};
const Numbers kOfRank1 = {2, 1, 2, 0};
const Numbers kCounts = {1, 1, 2, 1, 1, 2};

ExpertOwners Owners(int self) {
  return {.owners = {{.batch_rank = 0, .first = 0, .count = 2},
                     {.batch_rank = 1, .first = 2, .count = 1}},
          .self = self};
}

TEST(ExpertRoutingTest, CountsChoices) {
  EXPECT_EQ(CountChoices(kOfRank0, kExperts), Numbers({1, 1, 2}));
  EXPECT_EQ(CountChoices({}, kExperts), Numbers({0, 0, 0}));
}

TEST(ExpertRoutingDeathTest, RefusesAnUnknownExpert) {
  EXPECT_DEATH(CountChoices({3}, kExperts), "a token chose expert 3 of 3");
}

TEST(ExpertRoutingTest, CapacityIsAShareOfTheBatchRoundedUp) {
  EXPECT_EQ(ExpertCapacity(1, 4, 2, 3), 3);
  EXPECT_EQ(ExpertCapacity(1.25, 6, 2, 3), 5);
  EXPECT_EQ(ExpertCapacity(1, 0, 2, 3), 0);
}

TEST(ExpertRoutingTest, SortsByExpertAndKeepsTheOrderOfTokens) {
  const ExpertRoutes routes =
      RouteChoices(kOfRank0, kCounts, kExperts, Owners(0), std::nullopt);
  EXPECT_EQ(routes.kept, Numbers({0, 2, 1, 3}));
  EXPECT_EQ(routes.exchange.give, Runs({{{0, 2}}, {{2, 2}}}));
  // Expert 0: its own row, then that of rank 1. Then the same for expert 1.
  EXPECT_EQ(routes.exchange.take, Runs({{{0, 1}, {2, 1}}, {{1, 1}, {3, 1}}}));
  EXPECT_EQ(routes.offsets, Shape({0, 2, 4}));
}

TEST(ExpertRoutingTest, SendCountsEqualReceiveCounts) {
  const ExpertRoutes routes =
      RouteChoices(kOfRank1, kCounts, kExperts, Owners(1), std::nullopt);
  EXPECT_EQ(routes.kept, Numbers({3, 1, 0, 2}));
  EXPECT_EQ(routes.exchange.give, Runs({{{0, 2}}, {{2, 2}}}));
  EXPECT_EQ(routes.exchange.take, Runs({{{0, 2}}, {{2, 2}}}));
  EXPECT_EQ(routes.offsets, Shape({0, 4}));
}

// Expert 2 has capacity 3: it takes two choices of rank 0 and the first of rank
// 1.
TEST(ExpertRoutingTest, DropsTheLastOfTheBatchPastTheCapacity) {
  const ExpertRoutes first =
      RouteChoices(kOfRank0, kCounts, kExperts, Owners(0), 3);
  EXPECT_EQ(first.kept, Numbers({0, 2, 1, 3}));
  const ExpertRoutes second =
      RouteChoices(kOfRank1, kCounts, kExperts, Owners(1), 3);
  EXPECT_EQ(second.kept, Numbers({3, 1, 0}));
  EXPECT_EQ(second.exchange.take, Runs({{{0, 2}}, {{2, 1}}}));
  EXPECT_EQ(second.exchange.rows_given, 3);
}

// Two rows, and each rank has one token of each. With room for two, expert 2
// takes the choices of row 0 only.
TEST(ExpertRoutingTest, CountsTokensByRunsThatRanksSplit) {
  const BatchOrder order = {.ranks = 2, .runs_here = 2, .runs = 2};
  EXPECT_EQ(CountRuns(kOfRank0, kExperts, order), Numbers({1, 0, 1, 0, 1, 1}));
  const Numbers counts = {1, 0, 1, 0, 1, 1, 0, 1, 1, 1, 0, 1};
  const ExpertRoutes first =
      RouteChoices(kOfRank0, counts, kExperts, Owners(0), 2, order);
  EXPECT_EQ(first.kept, Numbers({0, 2, 1}));
  const ExpertRoutes second =
      RouteChoices(kOfRank1, counts, kExperts, Owners(1), 2, order);
  EXPECT_EQ(second.kept, Numbers({3, 1, 0}));
  EXPECT_EQ(second.exchange.take, Runs({{{0, 1}}, {{1, 1}}}));
}

// A rank of another group has three rows, this one none.
TEST(ExpertRoutingTest, RanksMayHaveFewerRuns) {
  const BatchOrder order = {.ranks = 1, .runs_here = 0, .runs = 3};
  EXPECT_EQ(CountRuns({}, kExperts, order), Numbers(9, 0));
}

TEST(ExpertRoutingTest, AnOwnerMayHaveNoExpert) {
  const ExpertOwners owners = {.owners = {{0, 0, 3}, {1, 3, 0}}, .self = 1};
  const ExpertRoutes routes =
      RouteChoices(kOfRank1, kCounts, kExperts, owners, std::nullopt);
  EXPECT_EQ(routes.exchange.give, Runs({{{0, 4}}, {{4, 0}}}));
  EXPECT_EQ(routes.exchange.take, Runs({{}, {}}));
  EXPECT_EQ(routes.offsets, Shape({0}));
}

// Half of the batch is on ranks with their own expert owners. Its choices use
// capacity but are not received.
TEST(ExpertRoutingTest, RanksWithoutExpertsOnlyAddTokens) {
  const ExpertOwners owners = {.owners = {{1, 0, 3}}, .self = 0};
  const ExpertRoutes routes =
      RouteChoices(kOfRank1, kCounts, kExperts, owners, 3);
  EXPECT_EQ(routes.kept, Numbers({3, 1, 0}));
  EXPECT_EQ(routes.exchange.take, Runs({{{0, 1}, {1, 1}, {2, 1}}}));
  EXPECT_EQ(routes.offsets, Shape({0, 1, 2, 3}));
}

}  // namespace
}  // namespace crosshatch::nn
