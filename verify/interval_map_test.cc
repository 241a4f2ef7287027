// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/verify/interval_map.h"

#include <cstdint>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace crosshatch::verify {
namespace {

TEST(IntervalMapTest, IsAValueForEachByte) {
  constexpr int64_t kBytes = 40;
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    IntervalMap<int> map;
    std::vector<int> bytes(kBytes, 0);
    for (int visit = 1; visit < 20; ++visit) {
      const int64_t begin = static_cast<int64_t>(random() % kBytes);
      const int64_t end =
          begin + static_cast<int64_t>(random() % (kBytes - begin + 1));
      int64_t at = begin;
      map.Visit(begin, end, [&](int64_t from, int64_t to, int& value) {
        ASSERT_EQ(from, at);
        ASSERT_LT(from, to);
        ASSERT_LE(to, end);
        for (int64_t i = from; i < to; ++i) {
          ASSERT_EQ(bytes[static_cast<size_t>(i)], value) << i;
          bytes[static_cast<size_t>(i)] = visit;
        }
        value = visit;
        at = to;
      });
      EXPECT_EQ(at, end > begin ? end : begin);
    }
    map.ForEach([&](int64_t from, int64_t to, int value) {
      for (int64_t i = from; i < to; ++i) {
        EXPECT_EQ(bytes[static_cast<size_t>(i)], value);
        bytes[static_cast<size_t>(i)] = 0;
      }
    });
    EXPECT_EQ(bytes, std::vector<int>(kBytes, 0));
  }
}

}  // namespace
}  // namespace crosshatch::verify
