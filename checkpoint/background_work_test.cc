// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <chrono>
#include <cstddef>
#include <new>
#include <thread>
#include <vector>

#include "crosshatch/checkpoint/async_save.h"
#include "gtest/gtest.h"

namespace crosshatch::checkpoint {
namespace {

TEST(BackgroundWorkTest, DoesAllInOrder) {
  std::vector<size_t> done;
  BackgroundWork work(3, [&](size_t part) {
    done.push_back(part);
    return absl::OkStatus();
  });
  EXPECT_TRUE(work.RunUntil(0).ok());
  EXPECT_TRUE(done.empty());
  EXPECT_TRUE(work.RunInBackground().ok());
  EXPECT_EQ(done, (std::vector<size_t>{0, 1, 2}));
  EXPECT_TRUE(work.RunUntil(7).ok());
  EXPECT_EQ(done.size(), 3u);
  BackgroundWork nothing(0, [](size_t) { return absl::InternalError("none"); });
  EXPECT_TRUE(nothing.RunInBackground().ok());
  EXPECT_TRUE(nothing.RunUntil(1).ok());
}

TEST(BackgroundWorkTest, ItsFirstErrorEndsIt) {
  size_t calls = 0;
  BackgroundWork work(3, [&](size_t part) {
    ++calls;
    return part == 1 ? absl::DataLossError("one") : absl::OkStatus();
  });
  EXPECT_TRUE(work.RunUntil(1).ok());
  EXPECT_EQ(work.RunInBackground(), absl::DataLossError("one"));
  EXPECT_EQ(work.RunUntil(3), absl::DataLossError("one"));
  EXPECT_EQ(calls, 2u);
}

/// The thread of a rank survives a part that runs out of memory.
TEST(BackgroundWorkTest, AnExceptionEndsAllParts) {
  std::atomic<bool> is_in_part = false;
  BackgroundWork work(2, [&](size_t) -> absl::Status {
    is_in_part = true;
    throw std::bad_alloc();
  });
  std::thread other([&] { EXPECT_THROW(work.RunUntil(1), std::bad_alloc); });
  while (!is_in_part) std::this_thread::yield();
  EXPECT_TRUE(absl::IsInternal(work.RunInBackground()));
  other.join();
  EXPECT_TRUE(absl::IsInternal(work.RunUntil(2)));
}

/// A background thread runs part 1 of six when another thread takes over the
/// first four. Returns the parts that the other thread runs.
std::vector<size_t> TakenOver(std::chrono::milliseconds delay) {
  std::vector<std::thread::id> by(6);
  std::atomic<bool> is_in_part = false;
  std::atomic<bool> may_go_on = false;
  BackgroundWork work(6, [&](size_t part) {
    by[part] = std::this_thread::get_id();
    if (part == 1) {
      is_in_part = true;
      while (!may_go_on) std::this_thread::yield();
    }
    EXPECT_TRUE(part < 2 || may_go_on) << "two parts at once";
    return absl::OkStatus();
  });
  std::thread background([&] { EXPECT_TRUE(work.RunInBackground().ok()); });
  while (!is_in_part) std::this_thread::yield();
  // Does not wait for parts that are done.
  EXPECT_TRUE(work.RunUntil(1).ok());
  std::thread other([&] { EXPECT_TRUE(work.RunUntil(4).ok()); });
  const std::thread::id others = other.get_id();
  std::this_thread::sleep_for(delay);
  may_go_on = true;
  other.join();
  background.join();
  std::vector<size_t> taken_over;
  for (size_t part = 0; part < by.size(); ++part) {
    EXPECT_NE(by[part], std::thread::id()) << part;
    if (by[part] == others) taken_over.push_back(part);
  }
  return taken_over;
}

TEST(BackgroundWorkTest, AThreadThatCannotWaitDoesTheRest) {
  // When the other thread has made its call cannot be observed, so it gets more
  // and more time.
  std::vector<size_t> taken_over;
  for (int ms = 1; taken_over.size() < 2 && ms < 20000; ms *= 2) {
    taken_over = TakenOver(std::chrono::milliseconds(ms));
  }
  EXPECT_EQ(taken_over, (std::vector<size_t>{2, 3}));
}

}  // namespace
}  // namespace crosshatch::checkpoint
