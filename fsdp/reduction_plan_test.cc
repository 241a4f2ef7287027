// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/fsdp/reduction_plan.h"

#include <set>
#include <string>

#include "gtest/gtest.h"

namespace crosshatch::fsdp {
namespace {

using Op = ReductionOp;
using Buffer = ReductionBuffer;
using On = ReductionStream;

TEST(GradientDivisionTest, DividesOnceInTheReduceScatter) {
  for (const DType dtype : {kFloat32, kBFloat16}) {
    for (const bool replicated : {false, true}) {
      EXPECT_EQ(PlanGradientDivision(dtype, 6, replicated, false),
                (GradientDivision{.reduce_scatter = 1.0 / 6}));
    }
  }
}

TEST(GradientDivisionTest, SplitsTheDivisionOfFloat16NearTheRoot) {
  EXPECT_EQ(PlanGradientDivision(kFloat16, 16, false, false),
            (GradientDivision{.before = 0.25, .reduce_scatter = 0.25}));
  EXPECT_EQ(PlanGradientDivision(kFloat16, 6, true, false),
            (GradientDivision{.before = 0.25, .all_reduce = 4.0 / 6}));
  EXPECT_EQ(PlanGradientDivision(kFloat16, 1, false, false),
            GradientDivision{});
  for (double factor = 1; factor < 5000; factor *= 1.7) {
    const GradientDivision d =
        PlanGradientDivision(kFloat16, factor, true, false);
    EXPECT_NEAR(d.before * d.reduce_scatter * d.all_reduce * d.after * factor,
                1, 1e-15);
    // Both factors are within a factor of 2 of the square root.
    EXPECT_LE(1 / d.before * (1 / d.before), 4 * factor);
    EXPECT_GE(1 / d.before * (1 / d.before), factor);
  }
}

TEST(GradientDivisionTest, DividesAfterwardsWhereCollectivesOnlySum) {
  EXPECT_EQ(PlanGradientDivision(kFloat16, 6, true, true),
            (GradientDivision{.after = 1.0 / 6}));
}

TEST(ReductionPlanTest, ReducesStraightToTheSharded) {
  EXPECT_EQ(PlanReduction({.division = {.reduce_scatter = 0.25}}).ToString(),
            "reduce_scatter full -> sharded times 0.25 on reduce_scatter\n"
            "show sharded on reduce_scatter\n");
}

TEST(ReductionPlanTest, AddsToExistingGradients) {
  EXPECT_EQ(PlanReduction({.accumulates = true}).ToString(),
            "reduce_scatter full -> reduced on reduce_scatter\n"
            "add reduced -> sharded on reduce_scatter\n"
            "show sharded on reduce_scatter\n");
}

TEST(ReductionPlanTest, ConvertsOnTheWay) {
  EXPECT_EQ(PlanReduction({.reduce_dtype = kBFloat16}).ToString(),
            "reduce_scatter full -> reduced on reduce_scatter\n"
            "copy reduced -> sharded on reduce_scatter\n"
            "show sharded on reduce_scatter\n");
}

TEST(ReductionPlanTest, DividesTwiceInFloat16) {
  EXPECT_EQ(PlanReduction({.reduce_dtype = kFloat16,
                           .shard_dtype = kFloat16,
                           .replicated = true,
                           .division = {.before = 0.5, .all_reduce = 0.25}})
                .ToString(),
            "scale full times 0.5 on compute\n"
            "reduce_scatter full -> sharded on reduce_scatter\n"
            "all_reduce sharded times 0.25 on all_reduce\n"
            "show sharded on all_reduce\n");
}

TEST(ReductionPlanTest, KeepsAndTakesPartialReductions) {
  EXPECT_EQ(
      PlanReduction({.replicated = true, .sums_replicas = false}).ToString(),
      "reduce_scatter full -> partial on reduce_scatter\n");
  EXPECT_EQ(
      PlanReduction(
          {.replicated = true, .sums_replicas = false, .has_partial = true})
          .ToString(),
      "reduce_scatter full -> reduced on reduce_scatter\n"
      "add reduced -> partial on reduce_scatter\n");
  EXPECT_EQ(PlanReduction({.replicated = true, .has_partial = true}).ToString(),
            "reduce_scatter full -> sharded on reduce_scatter\n"
            "add partial -> sharded on reduce_scatter\n"
            "all_reduce sharded on all_reduce\n"
            "show sharded on all_reduce\n");
}

TEST(ReductionPlanTest, RunsHooksAndCopiesToTheHost) {
  EXPECT_EQ(PlanReduction({.accumulates = true,
                           .offloaded = true,
                           .hook = true,
                           .hook_stream = true,
                           .division = {.after = 0.5}})
                .ToString(),
            "reduce_scatter full -> reduced on reduce_scatter\n"
            "hook reduced on hook\n"
            "scale reduced times 0.5 on hook\n"
            "add reduced -> sharded on to_host\n"
            "show sharded on to_host\n");
}

// In every combination each buffer is written before it is read, every gradient
// reaches the result once, and the factors multiply to the whole division.
TEST(ReductionPlanTest, KeepsItsInvariantsInEveryCombination) {
  for (int bits = 0; bits < 256; ++bits) {
    const auto bit = [bits](int i) { return (bits >> i & 1) != 0; };
    const ReductionFacts facts = {
        .reduce_dtype = bit(0) ? kBFloat16 : kFloat32,
        .replicated = bit(1),
        .sums_replicas = !bit(1) || bit(2),
        .has_partial = bit(1) && bit(3),
        .accumulates = bit(4),
        .offloaded = bit(5),
        .hook = bit(6),
        .hook_stream = bit(7),
        .division = {.before = 0.5, .reduce_scatter = 0.25, .after = 0.125}};
    const ReductionPlan plan = PlanReduction(facts);
    SCOPED_TRACE(plan.ToString());
    std::set<Buffer> ready = {Buffer::kFull};
    if (facts.has_partial) ready.insert(Buffer::kPartial);
    if (facts.accumulates) ready.insert(Buffer::kSharded);
    double factor = 1;
    int scatters = 0;
    int shows = 0;
    On last = On::kCompute;
    for (const ReductionStep& step : plan.steps) {
      EXPECT_GE(static_cast<int>(step.stream), static_cast<int>(last));
      last = step.stream;
      factor *= step.scale;
      if (step.op == Op::kReduceScatter || step.op == Op::kCopy ||
          step.op == Op::kAdd) {
        EXPECT_EQ(ready.count(step.from), 1u);
      }
      if (step.op == Op::kReduceScatter) {
        ++scatters;
        // Only empty buffers are overwritten.
        EXPECT_EQ(ready.count(step.to), 0u);
        ready.erase(Buffer::kFull);
      } else if (step.op == Op::kCopy) {
        EXPECT_EQ(ready.count(step.to), 0u);
      } else {
        EXPECT_EQ(ready.count(step.to), 1u);
      }
      if (step.op == Op::kAdd || step.op == Op::kCopy) ready.erase(step.from);
      ready.insert(step.to);
      shows += step.op == Op::kPublish ? 1 : 0;
    }
    EXPECT_EQ(scatters, 1);
    const bool keeps = facts.replicated && !facts.sums_replicas;
    EXPECT_EQ(shows, keeps ? 0 : 1);
    EXPECT_EQ(plan.result, keeps ? Buffer::kPartial : Buffer::kSharded);
    // Only the result remains. If the sum over replicas is deferred, so is a
    // part of the division.
    EXPECT_EQ(ready.count(plan.result), 1u);
    EXPECT_EQ(ready.count(Buffer::kReduced), 0u);
    if (!keeps) {
      EXPECT_EQ(ready.count(Buffer::kPartial), 0u);
    }
    EXPECT_EQ(factor, keeps ? 0.125 : 0.5 * 0.25 * 0.125);
  }
}

}  // namespace
}  // namespace crosshatch::fsdp
