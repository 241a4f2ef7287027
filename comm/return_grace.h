// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_RETURN_GRACE_H_
#define CROSSHATCH_COMM_RETURN_GRACE_H_

#include <algorithm>

#include "absl/time/time.h"

namespace crosshatch {

/// Returns how long a rank's function may take to return after its job has
/// failed: `timeout`, and at least 5 s. A rank only checks between ops, so a
/// short timeout for peers may be too short here. A rank that takes longer ends
/// its process, because nothing else can stop it.
inline absl::Duration ReturnGrace(absl::Duration timeout) {
  return std::max(timeout, absl::Seconds(5));
}

}  // namespace crosshatch

#endif  // CROSSHATCH_COMM_RETURN_GRACE_H_
