// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_BASE_WAIT_TIME_H_
#define CROSSHATCH_BASE_WAIT_TIME_H_

#include <algorithm>
#include <chrono>

#include "absl/time/time.h"

namespace crosshatch {

/// Returns `time`, at most a year, for wait_for and its like: they add it to
/// the clock's value, which overflows with infinity.
inline std::chrono::nanoseconds WaitTime(absl::Duration time) {
  return absl::ToChronoNanoseconds(std::min(time, absl::Hours(24 * 365)));
}

}  // namespace crosshatch

#endif  // CROSSHATCH_BASE_WAIT_TIME_H_
