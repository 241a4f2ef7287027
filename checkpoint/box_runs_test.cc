// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/checkpoint/box_runs.h"

#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "crosshatch/dtensor/layout/box.h"
#include "crosshatch/tensor/shape.h"
#include "gtest/gtest.h"

namespace crosshatch::checkpoint {
namespace {

using Runs = std::vector<std::pair<int64_t, int64_t>>;

Runs RunsOf(ShapeView sizes, const Box& box) {
  Runs runs;
  ForEachRun(sizes, box, [&](int64_t first, int64_t count) {
    runs.emplace_back(first, count);
  });
  return runs;
}

TEST(BoxRunsTest, RunsAreAsLongAsTheyCanBe) {
  EXPECT_EQ(RunsOf({4, 6}, {{1, 0}, {2, 6}}), (Runs{{6, 12}}));
  EXPECT_EQ(RunsOf({4, 6}, {{1, 2}, {2, 3}}), (Runs{{8, 3}, {14, 3}}));
  EXPECT_EQ(RunsOf({2, 3, 4}, {{0, 1, 0}, {2, 2, 4}}), (Runs{{4, 8}, {16, 8}}));
  EXPECT_EQ(RunsOf({}, {}), (Runs{{0, 1}}));
  EXPECT_EQ(RunsOf({4, 6}, {{1, 2}, {0, 3}}), Runs{});
  EXPECT_EQ(RunsOf({4, 0}, {{0, 0}, {4, 0}}), Runs{});
}

TEST(BoxRunsTest, CopiesAPartOfOneTensorToAPartOfAnother) {
  const Shape from = {3, 4, 5};
  const Shape to = {4, 2, 5};
  const Box from_box = {{1, 2, 0}, {2, 2, 5}};
  const Box to_box = {{2, 0, 0}, {2, 2, 5}};
  std::vector<int> source(60);
  std::iota(source.begin(), source.end(), 0);
  std::vector<int> copied(40, -1);
  int runs = 0;
  ForEachRunOfBoth(from, from_box, to, to_box,
                   [&](int64_t a, int64_t b, int64_t count) {
                     ++runs;
                     for (int64_t i = 0; i < count; ++i) {
                       copied[b + i] = source[a + i];
                     }
                   });
  EXPECT_EQ(runs, 2);
  for (int64_t i = 0; i < 4; ++i) {
    for (int64_t j = 0; j < 2; ++j) {
      for (int64_t k = 0; k < 5; ++k) {
        const int expected =
            i < 2 ? -1 : static_cast<int>(((i - 1) * 4 + j + 2) * 5 + k);
        EXPECT_EQ(copied[(i * 2 + j) * 5 + k], expected);
      }
    }
  }
}

TEST(BoxRunsDeathTest, ChecksThatTheBoxIsInTheTensor) {
  EXPECT_DEATH(RunsOf({4}, {{2}, {3}}), "2:5");
}

}  // namespace
}  // namespace crosshatch::checkpoint
