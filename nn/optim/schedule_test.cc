// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/optim/schedule.h"

#include <cmath>
#include <limits>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::nn {
namespace {

using ::testing::ElementsAre;
using Shape = Schedule::Shape;

std::vector<double> Rates(const Schedule& schedule, int64_t count) {
  std::vector<double> rates;
  for (int64_t step = 0; step < count; ++step) {
    rates.push_back(schedule.At(step));
  }
  return rates;
}

TEST(ScheduleTest, WarmsUpAndDecays) {
  // These rates are exact in binary.
  EXPECT_THAT(Rates({.peak = 2}, 3), ElementsAre(2, 2, 2));
  EXPECT_THAT(Rates({.peak = 2, .warmup = 4}, 6),
              ElementsAre(0.5, 1, 1.5, 2, 2, 2));
  EXPECT_THAT(
      Rates({.shape = Shape::kLinear, .peak = 2, .warmup = 2, .steps = 6}, 8),
      ElementsAre(1, 2, 2, 1.5, 1, 0.5, 0, 0));
  EXPECT_THAT(
      Rates({.shape = Shape::kLinear, .peak = 2, .last = 1, .steps = 4}, 6),
      ElementsAre(2, 1.75, 1.5, 1.25, 1, 1));
}

TEST(ScheduleTest, FollowsTheCosine) {
  const Schedule cosine = {
      .shape = Shape::kCosine, .peak = 3, .last = 1, .warmup = 2, .steps = 8};
  EXPECT_EQ(cosine.At(1), 3);
  EXPECT_EQ(cosine.At(2), 3);
  // The cosines of 60, 90 and 120 degrees, each to within some roundings.
  EXPECT_NEAR(cosine.At(4), 1 + 2 * 0.75, 1e-14);
  EXPECT_NEAR(cosine.At(5), 1 + 2 * 0.5, 1e-14);
  EXPECT_NEAR(cosine.At(6), 1 + 2 * 0.25, 1e-14);
  EXPECT_EQ(cosine.At(8), 1);
  EXPECT_EQ(cosine.At(int64_t{1} << 62), 1);
}

TEST(ScheduleTest, AllOfTheRunMayBeWarmup) {
  const Schedule schedule = {
      .shape = Shape::kCosine, .peak = 1, .warmup = 4, .steps = 4};
  EXPECT_TRUE(schedule.Check().ok());
  EXPECT_EQ(schedule.At(3), 1);
  EXPECT_EQ(schedule.At(4), 0);
}

TEST(ScheduleTest, HasNoRateWhereThereIsNoSchedule) {
  const Schedule endless = {.shape = Shape::kCosine, .peak = 1};
  EXPECT_DEATH(endless.At(0), "its 0 steps are to be at least");
  const Schedule schedule = {.peak = 1, .warmup = 2};
  EXPECT_DEATH(schedule.At(-3), "counted from 0");
}

TEST(ScheduleTest, ReportsInvalidOptions) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const Schedule& bad :
       {Schedule{.peak = nan}, Schedule{.peak = -1},
        Schedule{.peak = 1, .last = HUGE_VAL},
        Schedule{.peak = 1, .warmup = -1},
        Schedule{.shape = Shape::kLinear, .peak = 1, .steps = 0},
        Schedule{
            .shape = Shape::kCosine, .peak = 1, .warmup = 5, .steps = 4}}) {
    EXPECT_TRUE(absl::IsInvalidArgument(bad.Check())) << bad.Check();
  }
  EXPECT_TRUE(Schedule{.peak = 1}.Check().ok());
  EXPECT_EQ(ParseScheduleShape("cosine").value(), Shape::kCosine);
  EXPECT_TRUE(absl::IsInvalidArgument(ParseScheduleShape("").status()));
}

}  // namespace
}  // namespace crosshatch::nn
