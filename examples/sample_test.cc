// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/examples/sample.h"

#include <cmath>
#include <vector>

#include "gtest/gtest.h"

namespace crosshatch::examples {
namespace {

TEST(DrawTest, TakesTokensAsOftenAsTheirLogitsSay) {
  // Probabilities 1/8, 5/8 and 2/8; the smallest numbers draw the most likely.
  const std::vector<float> logits = {0, std::log(5.0f), std::log(2.0f)};
  const auto draw = [&](double uniform, const SampleOptions& options = {}) {
    return Draw(logits, options, uniform);
  };
  EXPECT_EQ(draw(0), 1);
  EXPECT_EQ(draw(0.62), 1);
  EXPECT_EQ(draw(0.63), 2);
  EXPECT_EQ(draw(0.87), 2);
  EXPECT_EQ(draw(0.88), 0);
  EXPECT_EQ(draw(1 - 0x1p-24), 0);
  // Of the two most likely: 5/7 and 2/7.
  EXPECT_EQ(draw(0.71, {.top_k = 2}), 1);
  EXPECT_EQ(draw(0.72, {.top_k = 2}), 2);
  EXPECT_EQ(draw(1 - 0x1p-24, {.top_k = 2}), 2);
  EXPECT_EQ(draw(0.99, {.top_k = 1}), 1);
  EXPECT_EQ(draw(0.99, {.top_k = 9}), 0);
  // A temperature of 1/2 squares them: 1, 25 and 4 of 30.
  EXPECT_EQ(draw(0.83, {.temperature = 0.5}), 1);
  EXPECT_EQ(draw(0.84, {.temperature = 0.5}), 2);
  EXPECT_EQ(draw(0.97, {.temperature = 0.5}), 0);
}

TEST(DrawTest, OfEqualsTakesTheFirst) {
  EXPECT_EQ(Draw({2, 7, 7, 1}, {.temperature = 0}, 0.99), 1);
  EXPECT_EQ(Draw({2, 7, 7, 1}, {.top_k = 1}, 0.99), 1);
}

}  // namespace
}  // namespace crosshatch::examples
