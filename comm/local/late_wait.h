// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_LOCAL_LATE_WAIT_H_
#define CROSSHATCH_COMM_LOCAL_LATE_WAIT_H_

/// \file
/// Waits that take too long, and which of them keeps the others waiting.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "crosshatch/comm/fingerprint.h"
#include "crosshatch/comm/watch_clock.h"

namespace crosshatch::internal {

/// A wait of members of a group for others of it.
struct LateWait {
  /// For messages, e.g. "group 'tp' (ranks 0, 1)".
  std::string group;
  absl::Duration age;
  /// Whether all have come to the collective, and the missing ones have not
  /// come to its end. Those wait for no other group.
  bool met = false;
  /// The world ranks that wait, and those that they wait for.
  std::vector<int> waiting;
  std::vector<int> missing;
  /// The state of each, e.g. "rank 0 came to ..., rank 1 did not come".
  std::string text;
};

/// Returns the index of the wait that causes the others; `late` is not empty.
/// First choice: the oldest whose members have met. Second: the oldest whose
/// missing ranks wait in none of the others. Last: the oldest of all.
size_t RootOf(absl::Span<const LateWait> late);

/// Returns a message about wait `root`, whose group has this timeout, and the
/// other waits.
std::string DescribeLate(absl::Span<const LateWait> late, size_t root,
                         absl::Duration timeout);

/// An in-flight operation of a member that has met the others. The watchdog
/// sees if it does not end, as when a copy never ends or a notification is
/// lost. It costs the member two uncontended locks.
class InFlight {
 public:
  struct Stay {
    absl::Duration age;
    /// The number of barriers that the member has come to or left since it met
    /// the others: odd in a barrier.
    int stage;
    std::string what;
  };

  /// \name The member's
  /// @{
  /// \param fingerprint of the operation; valid until Leave.
  void Enter(const Fingerprint& fingerprint) {
    std::lock_guard lock(mutex_);
    fingerprint_ = &fingerprint;
    ++count_;
    stage_.store(0, std::memory_order_relaxed);
  }
  /// Called when the member comes to a barrier, and when it has left it.
  void Step() {
    stage_.store(stage_.load(std::memory_order_relaxed) + 1,
                 std::memory_order_relaxed);
  }
  void Leave() {
    std::lock_guard lock(mutex_);
    fingerprint_ = nullptr;
  }
  /// @}

  /// Returns the member's operation if it has lasted for at least `least`.
  /// Called by the watchdog.
  std::optional<Stay> Find(const WatchMoment& now, absl::Duration least) {
    std::lock_guard lock(mutex_);
    if (fingerprint_ == nullptr) return std::nullopt;
    if (seen_ != count_) {
      seen_ = count_;
      since_ = now.counted;
    }
    const absl::Duration age = now.counted - since_;
    if (age < least) return std::nullopt;
    return Stay{age, stage_.load(std::memory_order_relaxed),
                Describe(*fingerprint_)};
  }

 private:
  std::mutex mutex_;
  const Fingerprint* fingerprint_ = nullptr;
  uint64_t count_ = 0;
  std::atomic<int> stage_{0};
  // The watchdog's: the operation that it saw last, and when it saw it first.
  uint64_t seen_ = 0;
  absl::Duration since_;
};

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_COMM_LOCAL_LATE_WAIT_H_
