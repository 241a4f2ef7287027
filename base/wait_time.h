// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_BASE_WAIT_TIME_H_
#define CROSSHATCH_BASE_WAIT_TIME_H_

#include <algorithm>
#include <chrono>

#include "absl/time/time.h"

namespace crosshatch {

/// `time` for wait_for and the like, which add it to what a clock shows and
/// would come to the past with infinity: at most a year.
inline std::chrono::nanoseconds WaitTime(absl::Duration time) {
  return absl::ToChronoNanoseconds(std::min(time, absl::Hours(24 * 365)));
}

}  // namespace crosshatch

#endif  // CROSSHATCH_BASE_WAIT_TIME_H_
