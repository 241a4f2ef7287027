// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_MPI_DOORBELL_H_
#define CROSSHATCH_COMM_MPI_DOORBELL_H_

#include <atomic>
#include <chrono>
#include <cstdint>

namespace crosshatch::internal {

/// Wakes a thread of another process, in memory that both share. All zero is a
/// bell in good order.
///
/// Whoever rings has made its news visible before; whoever sleeps has looked
/// for news after Listen. One of the two then sees the other (both accesses are
/// sequentially consistent), so no ring is lost that matters.
class Doorbell {
 public:
  /// Any thread of any process.
  void Ring();

  /// \name The owner's, one thread at a time
  /// @{
  uint32_t Listen();
  void DoNotSleep() { listens_.store(0); }
  /// Returns at a ring since Listen gave `heard`, or after `longest`, or
  /// earlier.
  void Sleep(uint32_t heard, std::chrono::nanoseconds longest);
  /// @}

 private:
  std::atomic<uint32_t> rings_{0};
  std::atomic<uint32_t> listens_{0};
};
static_assert(std::atomic<uint32_t>::is_always_lock_free);

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_COMM_MPI_DOORBELL_H_
