// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_WATCH_CLOCK_H_
#define CROSSHATCH_COMM_WATCH_CLOCK_H_

/// \file
/// The clock of a watchdog.

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>

#include "absl/time/time.h"

namespace crosshatch::internal {

using SteadyTime = std::chrono::steady_clock::time_point;

/// Returns the whole milliseconds of `waited` for a message: "1.2s", "0ms".
inline std::string FormatWait(absl::Duration waited) {
  if (waited < absl::Milliseconds(1)) return "0ms";
  return absl::FormatDuration(absl::Trunc(waited, absl::Milliseconds(1)));
}

/// One reading of the clock.
struct WatchMoment {
  /// The time by the watchdog's clock.
  absl::Duration counted;
  SteadyTime real;
  /// The most that the clock advances between two readings.
  absl::Duration longest_step;

  /// Returns, by the watchdog's clock, when something began that is seen for
  /// the first time now.
  absl::Duration BeginOf(SteadyTime begin) const {
    return counted - std::clamp(absl::FromChrono(real - begin),
                                absl::ZeroDuration(), longest_step);
  }
};

/// A clock that does not advance while its process is stopped by a signal or a
/// debugger, or with its whole machine. A stop is no reason for a timeout.
/// \threadsafety one thread.
class WatchClock {
 public:
  explicit WatchClock(absl::Duration longest_step)
      : longest_step_(longest_step) {}

  /// Reads the clock at the real time `real`.
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
