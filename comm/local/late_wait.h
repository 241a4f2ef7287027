// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_LOCAL_LATE_WAIT_H_
#define CROSSHATCH_COMM_LOCAL_LATE_WAIT_H_

/// \file
/// Which of several waits that take too long keeps the others waiting.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "crosshatch/comm/watch_clock.h"

namespace crosshatch::internal {

/// Members of a group that wait for others of it.
struct LateWait {
  /// For messages, e.g. "group 'tp' (ranks 0, 1)".
  std::string group;
  absl::Duration age;
  /// Whether all have come to the collective and the missing ones have not come
  /// to its end. Those wait for no other group.
  bool met = false;
  /// World ranks that wait, and whom they wait for.
  std::vector<int> waiting;
  std::vector<int> missing;
  /// Who does what, e.g. "rank 0 came to ..., rank 1 did not come".
  std::string text;
};

/// The index of the one in which the fault is to be looked for; `late` is not
/// empty. First, the oldest whose members have met. Else the oldest whose
/// missing ranks wait in none of the others; else the oldest of all.
size_t RootOf(absl::Span<const LateWait> late);

/// Says for people what RootOf found, and what waits besides.
std::string DescribeLate(absl::Span<const LateWait> late,
                         absl::Duration timeout);

/// Lets a watch see a member that has met the others and does not come out: one
/// whose copy never ends, or whom nobody wakes. It costs the member two locks
/// that nobody else asks for.
class InFlight {
 public:
  struct Stay {
    absl::Duration age;
    /// How often it has come to a barrier and left one since it met the
    /// others: odd in a barrier.
    int stage;
    std::string what;
  };

  /// \name The member's
  /// @{
  /// \param what says what it does; valid until Leave.
  void Enter(const absl::FunctionRef<std::string()>& what) {
    std::lock_guard lock(mutex_);
    what_ = &what;
    ++count_;
    stage_.store(0, std::memory_order_relaxed);
  }
  /// Call when it comes to a barrier, and when it has left it.
  void Step() {
    stage_.store(stage_.load(std::memory_order_relaxed) + 1,
                 std::memory_order_relaxed);
  }
  void Leave() {
    std::lock_guard lock(mutex_);
    what_ = nullptr;
  }
  /// @}

  /// For the watch, at each look: the member's stay, if it is inside and was
  /// for at least `least`.
  std::optional<Stay> Find(const WatchMoment& now, absl::Duration least) {
    std::lock_guard lock(mutex_);
    if (what_ == nullptr) return std::nullopt;
    if (seen_ != count_) {
      seen_ = count_;
      since_ = now.counted;
    }
    const absl::Duration age = now.counted - since_;
    if (age < least) return std::nullopt;
    return Stay{age, stage_.load(std::memory_order_relaxed), (*what_)()};
  }

 private:
  std::mutex mutex_;
  /// Null outside.
  const absl::FunctionRef<std::string()>* what_ = nullptr;
  uint64_t count_ = 0;
  std::atomic<int> stage_{0};
  // The watch's: the stay that it saw last, and when it saw it first.
  uint64_t seen_ = 0;
  absl::Duration since_;
};

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_COMM_LOCAL_LATE_WAIT_H_
