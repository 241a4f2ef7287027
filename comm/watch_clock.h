// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_WATCH_CLOCK_H_
#define CROSSHATCH_COMM_WATCH_CLOCK_H_

/// \file
/// Time as a watch over waits counts it.

#include <algorithm>
#include <chrono>
#include <optional>

#include "absl/time/time.h"

namespace crosshatch::internal {

using SteadyTime = std::chrono::steady_clock::time_point;

/// One look of a watch.
struct WatchMoment {
  /// By the watch's clock.
  absl::Duration counted;
  SteadyTime real;
  /// What the clock goes on by from one look to the next, at most.
  absl::Duration longest_step;

  /// By the watch's clock, when something began that is seen for the first
  /// time now.
  absl::Duration BeginOf(SteadyTime begin) const {
    return counted - std::clamp(absl::FromChrono(real - begin),
                                absl::ZeroDuration(), longest_step);
  }
};

/// A clock that stands still while its process does: stopped by a signal or a
/// debugger, or with its whole machine. Whoever then seems to have waited for
/// an hour has waited for a moment, and those it waits for have not moved.
/// \threadsafety one thread.
class WatchClock {
 public:
  explicit WatchClock(absl::Duration longest_step)
      : longest_step_(longest_step) {}

  /// Call at each look.
  WatchMoment Look(SteadyTime real) {
    if (last_.has_value()) {
      counted_ += std::min(absl::FromChrono(real - *last_), longest_step_);
    }
    last_ = real;
    return {counted_, real, longest_step_};
  }

 private:
  const absl::Duration longest_step_;
  absl::Duration counted_;
  std::optional<SteadyTime> last_;
};

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_COMM_WATCH_CLOCK_H_
