// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/examples/page/charts.h"

#include <algorithm>
#include <limits>
#include <string>

#include "crosshatch/examples/page/step_timeline.h"
#include "crosshatch/examples/page/svg.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::examples {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(TicksTest, CoverWhatTheyAreFor) {
  for (const auto& [low, high] :
       std::vector<std::pair<double, double>>{{0, 1},
                                              {2.3, 9.7},
                                              {1e-9, 3e-9},
                                              {-5, 5},
                                              {1e6, 1.0001e6},
                                              {1, 1 + 0x1p-52},
                                              {-1, -1 + 0x1p-53},
                                              {1e300, 1e300}}) {
    const std::vector<double> ticks = Ticks(low, high, 4);
    EXPECT_LE(ticks.front(), low);
    EXPECT_GE(ticks.back(), high * (1 - 1e-12));
    EXPECT_GE(ticks.size(), 2u);
    EXPECT_LE(ticks.size(), 8u);
    EXPECT_TRUE(std::is_sorted(ticks.begin(), ticks.end()));
  }
  // A single value has a place too.
  EXPECT_GE(Ticks(3, 3, 4).size(), 2u);
  EXPECT_GE(Ticks(0, 0, 4).size(), 2u);
}

TEST(ShortTest, IsShort) {
  EXPECT_EQ(Short(0), "0");
  EXPECT_EQ(Short(0.0003), "0.0003");
  EXPECT_EQ(Short(1234), "1234");
  EXPECT_EQ(Short(45300), "45.3K");
  EXPECT_EQ(Short(-2.5e6), "-2.5M");
}

TEST(LineChartTest, DrawsWhatIsFinite) {
  const double none = std::numeric_limits<double>::quiet_NaN();
  const std::string chart =
      LineChart({{"a", 0, {{1, 5}, {2, none}, {3, 7}}}, {"b", 1, {}}});
  // From the left edge to the right one.
  EXPECT_THAT(chart, HasSubstr("points=\"62.0,194.0 546.0,12.0\""));
  EXPECT_THAT(chart, Not(HasSubstr("nan")));
  EXPECT_THAT(chart, Not(HasSubstr(">b<"))) << "nothing is drawn of it";
  EXPECT_EQ(LineChart({{"a", 0, {}}}), "");
  EXPECT_EQ(LineChart({{"a", 0, {{1, none}}}}), "");
  EXPECT_THAT(LineChart({{"a", 0, {{4, 2}}}}), HasSubstr("62.0,"));
}

TEST(LineChartTest, LogarithmsAreOfWhatHasThem) {
  const std::string chart =
      LineChart({{"a", 0, {{1, 1}, {2, 0}, {3, 100}}}}, {.logarithmic = true});
  EXPECT_THAT(chart, HasSubstr("points=\"62.0,194.0 546.0,12.0\""));
  EXPECT_THAT(chart, HasSubstr(">100<"));
}

TEST(MemoryChartTest, StacksTheClasses) {
  TracedStep step = {.step = 1, .us = 2000};
  step.memory = {{.us = 0, .bytes = {1024, 0, 0, 0, 0, 0}},
                 {.us = 1000, .bytes = {1024, 0, 0, 3072, 0, 0}},
                 {.us = 2000, .bytes = {1024, 0, 0, 0, 0, 0}}};
  const std::string chart = MemoryChart(step);
  EXPECT_THAT(chart, HasSubstr("<title>parameter</title>"));
  EXPECT_THAT(chart, HasSubstr("<title>activation</title>"));
  EXPECT_THAT(chart, Not(HasSubstr("<title>gradient</title>")));
  EXPECT_THAT(chart, HasSubstr("peak: 4.0 KiB"));
  EXPECT_EQ(MemoryChart(TracedStep()), "");
}

TEST(StepTimelineTest, HasALaneForEachStreamAndNests) {
  const TracedStep step = {.step = 1,
                           .us = 1000,
                           .spans = {{"forward", "a<b", "compute", 0, 1000},
                                     {"op", "matmul", "compute", 0, 500},
                                     {"op", "tiny", "compute", 600, 600.01},
                                     {"all_gather", "a", "side", 100, 300}}};
  const std::string svg = StepTimeline(step);
  EXPECT_THAT(svg, HasSubstr(">compute<"));
  EXPECT_THAT(svg, HasSubstr(">side<"));
  EXPECT_THAT(svg, HasSubstr("forward a&lt;b: 1.00 ms"));
  EXPECT_THAT(svg, HasSubstr("matmul: 0.50 ms"));
  EXPECT_THAT(svg, Not(HasSubstr("tiny"))) << "too narrow to be seen";
  EXPECT_EQ(StepTimeline(TracedStep()), "");
  EXPECT_EQ(TimeTable(TracedStep()), "");
  EXPECT_THAT(TimeTable(step), HasSubstr("50.0 %"));
}

}  // namespace
}  // namespace crosshatch::examples
