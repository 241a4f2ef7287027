// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_MPI_NOTIFICATION_H_
#define CROSSHATCH_COMM_MPI_NOTIFICATION_H_

#include <atomic>
#include <chrono>
#include <cstdint>

#include "crosshatch/base/threads.h"

namespace crosshatch::internal {

/// Wakes a thread of another process, in memory that both share. All zero is a
/// valid state.
///
/// A thread makes its messages visible before it notifies. A thread polls after
/// Arm, before it sleeps. One of the two then sees the other, since both
/// accesses are sequentially consistent: no notification that matters is lost.
class Notification {
 public:
  /// Any thread of any process.
  void Notify() {
    count_.fetch_add(1);
    if (is_armed_.load() != 0) FutexWake(count_, 1, FutexScope::kAllProcesses);
  }

  /// \name The owner's, one thread at a time
  /// @{
  uint32_t Arm() {
    is_armed_.store(1);
    return count_.load();
  }
  void Disarm() { is_armed_.store(0); }
  /// Returns at a notification since Arm returned `seen`, or after `longest`,
  /// or earlier.
  void Sleep(uint32_t seen, std::chrono::nanoseconds longest) {
    FutexSleep(count_, seen, longest, FutexScope::kAllProcesses);
    is_armed_.store(0);
  }
  /// @}

 private:
  std::atomic<uint32_t> count_{0};
  std::atomic<uint32_t> is_armed_{0};
};
static_assert(std::atomic<uint32_t>::is_always_lock_free);

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_COMM_MPI_NOTIFICATION_H_
