// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/examples/page/step_series.h"

#include <cstdint>
#include <string>

#include "gtest/gtest.h"

namespace crosshatch::examples {
namespace {

StepMetrics Step(int64_t step) {
  const auto x = static_cast<double>(step);
  return {.step = step,
          .loss = 100 - x,
          .grad_norm = x / 3,
          .lr = x * 1e-3,
          .tokens_per_s = 2 * x};
}

TEST(StepSeriesTest, IsOfBoundedSizeAndCountsEachStepOnce) {
  for (const int64_t steps : {1, 8, 9, 17, 100, 1001}) {
    StepSeries series(8);
    for (int64_t step = 1; step <= steps; ++step) series.Add(Step(step));
    ASSERT_LE(series.points().size(), 8u);
    int64_t count = 0;
    double sum = 0;
    for (const SeriesPoint& point : series.points()) {
      count += point.count;
      sum += *point.loss * static_cast<double>(point.count);
      EXPECT_EQ(point.step, count);
      // Means over the point's steps, and the last rate.
      EXPECT_NEAR(*point.loss,
                  100 - (2.0 * static_cast<double>(point.step) -
                         static_cast<double>(point.count) + 1) /
                            2,
                  1e-9);
      EXPECT_EQ(point.lr, static_cast<double>(point.step) * 1e-3);
    }
    EXPECT_EQ(count, steps);
    const auto n = static_cast<double>(steps);
    EXPECT_NEAR(sum, 100 * n - n * (n + 1) / 2, 1e-6 * n);
  }
}

TEST(StepSeriesTest, ContinuesFromItsText) {
  StepSeries whole(8);
  for (int64_t step = 1; step <= 20; ++step) whole.Add(Step(step));
  StepSeries begun(8);
  for (int64_t step = 1; step <= 7; ++step) begun.Add(Step(step));
  StepMetrics with_eval = Step(8);
  with_eval.eval_loss = 0.1;
  begun.Add(with_eval);
  const StepSeries again = StepSeries::FromJson(begun.ToJson(), 8);
  EXPECT_EQ(again.ToJson(), begun.ToJson());
  EXPECT_EQ(again.points()[7].eval_loss, 0.1);
  // The run was resumed after step 5.
  EXPECT_EQ(StepSeries::FromJson(begun.ToJson(), 5).points().size(), 5u);
  // A dry run has no losses.
  StepSeries dry;
  dry.Add({.step = 1});
  EXPECT_FALSE(
      StepSeries::FromJson(dry.ToJson(), 1).points()[0].loss.has_value());
}

TEST(StepSeriesTest, RejectsOtherTexts) {
  for (const char* text :
       {"", "{", "[]", "{\"points\":1,\"stride\":1}",
        "{\"points\":[[1]],\"stride\":1}",
        "{\"points\":[[1,1,1,1,1,1,1],[1,1,1,1,1,1,1]],\"stride\":1}",
        "{\"points\":[[1,\"x\",1,1,1,1,1]],\"stride\":1}"}) {
    EXPECT_TRUE(StepSeries::FromJson(text, 100).points().empty()) << text;
  }
}

}  // namespace
}  // namespace crosshatch::examples
