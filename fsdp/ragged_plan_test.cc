// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/fsdp/ragged_plan.h"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::fsdp {
namespace {

using ::testing::ElementsAre;

std::string ToString(const std::vector<RaggedParameter>& parameters) {
  std::string text;
  for (const RaggedParameter& p : parameters) {
    absl::StrAppend(&text, p.rows, "x", p.row_elems, "/", p.rows_per_block,
                    " ");
  }
  return text;
}

// Checks that each rank's rows are whole blocks and one piece of the buffer.
void ExpectPieces(const std::vector<RaggedParameter>& parameters, int ranks,
                  const RaggedPlan& plan) {
  SCOPED_TRACE(absl::StrCat(ToString(parameters), "on ", ranks, " ranks"));
  int64_t end = 0;    // Of the parameters so far.
  int64_t elems = 0;  // Of all parameters.
  for (size_t i = 0; i < parameters.size(); ++i) {
    const RaggedParameter& p = parameters[i];
    EXPECT_GE(plan.offsets[i], end);
    EXPECT_EQ(plan.offsets[i] % kFullAlignment, 0);
    end = plan.offsets[i] + p.elems();
    elems += p.elems();
    ASSERT_EQ(static_cast<int>(plan.cuts[i].size()), ranks - 1);
    int64_t before = 0;
    for (const int64_t cut : plan.cuts[i]) {
      EXPECT_GE(cut, before);
      EXPECT_LE(cut, p.rows);
      EXPECT_TRUE(cut == p.rows || cut % p.rows_per_block == 0);
      before = cut;
    }
  }
  for (int rank = 1; rank < ranks; ++rank) {
    // Whatever lower ranks hold is before whatever this rank and those above
    // hold, and with slots on the right side of the boundary.
    int64_t last = 0;
    int64_t first = end;
    for (size_t i = parameters.size(); i-- > 0;) {
      const RaggedParameter& p = parameters[i];
      const int64_t cut =
          plan.offsets[i] +
          plan.cuts[i][static_cast<size_t>(rank) - 1] * p.row_elems;
      if (cut > plan.offsets[i]) last = std::max(last, cut);
      if (cut < plan.offsets[i] + p.elems()) first = cut;
    }
    EXPECT_LE(last, first);
    if (plan.slot_elems == 0) continue;
    EXPECT_LE(last, rank * plan.slot_elems);
    EXPECT_GE(first, std::min(end, rank * plan.slot_elems));
  }
  if (plan.slot_elems == 0) return;
  EXPECT_LE(end, ranks * plan.slot_elems);
  EXPECT_LE(
      static_cast<double>(plan.slot_elems),
      static_cast<double>((elems + ranks - 1) / ranks) * (1 + kMaxSlotSlack));
}

TEST(RaggedPlanTest, MatricesOfOneWidthFillEqualSlots) {
  // 28 rows of 16 on 4 ranks.
  const RaggedPlan plan = PlanRaggedShards({{10, 16}, {6, 16}, {12, 16}}, 4);
  EXPECT_EQ(plan.slot_elems, 7 * 16);
  EXPECT_THAT(plan.offsets, ElementsAre(0, 160, 256));
  EXPECT_THAT(plan.cuts,
              ElementsAre(ElementsAre(7, 10, 10), ElementsAre(0, 4, 6),
                          ElementsAre(0, 0, 5)));
}

// A block of Llama 3 8B on 64 ranks.
TEST(RaggedPlanTest, ALlamaBlockHasEqualSlots) {
  const std::vector<RaggedParameter> block = {
      {4096, 4096},  {1024, 4096},  {1024, 4096}, {4096, 4096}, {14336, 4096},
      {14336, 4096}, {4096, 14336}, {4096, 1},    {4096, 1}};
  int64_t elems = 0;
  for (const RaggedParameter& p : block) elems += p.elems();
  const RaggedPlan plan = PlanRaggedShards(block, 64);
  ExpectPieces(block, 64, plan);
  ASSERT_NE(plan.slot_elems, 0);
  EXPECT_LE(static_cast<double>(plan.slot_elems * 64),
            static_cast<double>(elems) * 1.02);
}

TEST(RaggedPlanTest, BlocksStayWhole) {
  const std::vector<RaggedParameter> parameters = {
      {10, 16, 4}, {6, 16, 100}, {12, 16, 3}};
  for (int ranks : {2, 3, 4, 7}) {
    const RaggedPlan plan = PlanRaggedShards(parameters, ranks);
    ExpectPieces(parameters, ranks, plan);
    for (const int64_t cut : plan.cuts[1]) EXPECT_TRUE(cut == 0 || cut == 6);
  }
}

// Rows of no common length: pieces end at the nearest rows.
TEST(RaggedPlanTest, PiecesDifferIfRowsDoNotFit) {
  const RaggedPlan plan = PlanRaggedShards({{3, 7}, {2, 5}}, 2);
  EXPECT_EQ(plan.slot_elems, 0);
  EXPECT_THAT(plan.offsets, ElementsAre(0, 32));
  EXPECT_THAT(plan.cuts, ElementsAre(ElementsAre(3), ElementsAre(0)));
}

TEST(RaggedPlanTest, PlansAnything) {
  std::mt19937 random(7);
  const auto number = [&](int most) {
    return static_cast<int64_t>(random() % static_cast<unsigned>(most + 1));
  };
  int slots = 0;
  for (int i = 0; i < 3000; ++i) {
    std::vector<RaggedParameter> parameters;
    const int64_t width = 1 + number(40);
    for (int64_t p = number(4); p >= 0; --p) {
      parameters.push_back({number(i % 2 == 0 ? 20 : 300),
                            number(3) == 0 ? number(20) : width,
                            1 + number(number(2) == 0 ? 30 : 0)});
    }
    const int ranks = static_cast<int>(1 + number(8));
    const RaggedPlan plan = PlanRaggedShards(parameters, ranks);
    ExpectPieces(parameters, ranks, plan);
    if (plan.slot_elems != 0) ++slots;
    if (::testing::Test::HasFailure()) return;
  }
  EXPECT_GT(slots, 100);
  EXPECT_LT(slots, 2900);
}

}  // namespace
}  // namespace crosshatch::fsdp
