// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_SPIN_H_
#define CROSSHATCH_COMM_SPIN_H_

/// \file
/// Busy waiting of a rank before it sleeps, the same for threads and processes.

#include <atomic>
#include <chrono>
#include <thread>

#include "crosshatch/base/threads.h"

namespace crosshatch::internal {

/// The scheduler of this machine.
struct Scheduler {
  /// Yields the core; returns for how long.
  static std::chrono::nanoseconds Yield() {
    const auto begin = std::chrono::steady_clock::now();
    std::this_thread::yield();
    return std::chrono::steady_clock::now() - begin;
  }
};

/// \tparam System yields; tests replace Scheduler.
/// \threadsafety any thread.
template <typename System>
class BasicSpin {
 public:
  /// Calls done() until it returns true or a moment is over; returns its last
  /// result. Pauses between the first `pauses` calls, which are few because
  /// ranks often outnumber cores. Then yields the core before each call, which
  /// costs less than to sleep and be woken. After a yield that took long, which
  /// gave a time slice to another program, many calls do not yield.
  template <typename Done>
  bool Until(int pauses, Done&& done) {
    for (int i = 0; i < pauses; ++i) {
      if (done()) return true;
      Pause();
    }
    const int without = calls_without_yield_.load(std::memory_order_relaxed);
    if (without > 0) {
      calls_without_yield_.store(without - 1, std::memory_order_relaxed);
      return false;
    }
    for (int i = 0; i < 16; ++i) {
      const bool was_long = System::Yield() > std::chrono::milliseconds(1);
      if (was_long) calls_without_yield_.store(1000, std::memory_order_relaxed);
      if (done()) return true;
      if (was_long) return false;
    }
    return false;
  }

 private:
  std::atomic<int> calls_without_yield_{0};
};

using Spin = BasicSpin<Scheduler>;

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_COMM_SPIN_H_
