// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_COORDINATION_STEADY_TIME_H_
#define CROSSHATCH_COMM_COORDINATION_STEADY_TIME_H_

#include <chrono>

#include "absl/time/time.h"

namespace crosshatch::coordination {

/// A time to measure waits by, which setting the machine's clock does not move.
/// Its zero means nothing.
inline absl::Time SteadyNow() {
  return absl::UnixEpoch() +
         absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
}

}  // namespace crosshatch::coordination

#endif  // CROSSHATCH_COMM_COORDINATION_STEADY_TIME_H_
