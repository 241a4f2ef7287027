// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/mpi/notification.h"

#include <atomic>
#include <chrono>
#include <thread>

#include "gtest/gtest.h"

namespace crosshatch::internal {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;

TEST(NotificationTest, SleepsNoLongerThanGiven) {
  Notification notification;
  const auto begin = std::chrono::steady_clock::now();
  notification.Sleep(notification.Arm(), milliseconds(5));
  EXPECT_GE(std::chrono::steady_clock::now() - begin, milliseconds(4));
}

TEST(NotificationTest, ANotificationBeforeTheSleepEndsIt) {
  Notification notification;
  const uint32_t seen = notification.Arm();
  notification.Notify();
  // Returns at once; otherwise the test times out.
  notification.Sleep(seen, minutes(10));
}

TEST(NotificationTest, NoNotificationIsLost) {
  Notification notification;
  constexpr int kNews = 2000;
  std::atomic<int> news = 0;
  std::atomic<int> taken = 0;
  std::thread ringer([&] {
    for (int i = 1; i <= kNews; ++i) {
      news = i;
      notification.Notify();
      // Every second time, the sleeper has time to fall asleep.
      while (i % 2 == 0 && taken.load() != i) std::this_thread::yield();
    }
  });
  while (taken.load() < kNews) {
    const uint32_t seen = notification.Arm();
    if (taken.load() != news.load()) {
      notification.Disarm();
      taken = news.load();
      continue;
    }
    notification.Sleep(seen, minutes(10));
  }
  ringer.join();
}

}  // namespace
}  // namespace crosshatch::internal
