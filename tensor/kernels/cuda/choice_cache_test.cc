// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/kernels/cuda/choice_cache.h"

#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace crosshatch::internal {
namespace {

TEST(ChoiceCacheTest, ChoosesOnceForAKey) {
  ChoiceCache<std::string, int> cache(10);
  int next = 7;
  const auto choose = [&] { return next++; };
  EXPECT_EQ(cache.Get("a", choose), 7);
  EXPECT_EQ(cache.Get("b", choose), 8);
  EXPECT_EQ(cache.Get("a", choose), 7);
  EXPECT_EQ(cache.Get("b", choose), 8);
  EXPECT_EQ(cache.made(), 2);
}

TEST(ChoiceCacheTest, ForgetsTheOldestOfTooMany) {
  ChoiceCache<int, int> cache(2);
  const auto get = [&](int key) { return cache.Get(key, [&] { return key; }); };
  get(1);
  get(2);
  get(3);  // Evicts 1.
  EXPECT_EQ(get(2), 2);
  EXPECT_EQ(get(3), 3);
  EXPECT_EQ(cache.made(), 3);
  EXPECT_EQ(get(1), 1);
  EXPECT_EQ(cache.made(), 4);
}

TEST(ChoiceCacheTest, ConcurrentCallsGetOneChoice) {
  ChoiceCache<int, int> cache(2);
  std::vector<int> got(4);
  std::vector<std::thread> threads;
  for (int& mine : got) {
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) {
        mine = cache.Get(1, [&] { return 11; });
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(got, std::vector<int>(4, 11));
  EXPECT_EQ(cache.made(), 1);
}

}  // namespace
}  // namespace crosshatch::internal
