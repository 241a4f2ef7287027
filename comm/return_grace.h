// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_RETURN_GRACE_H_
#define CROSSHATCH_COMM_RETURN_GRACE_H_

#include <algorithm>

#include "absl/time/time.h"

namespace crosshatch {

/// How long a rank's function may take to return once a job of `timeout` has
/// failed: as long again, and at least 5 s. It looks only between ops, so how
/// long it takes has nothing to do with a timeout that was meant for its peers'
/// patience. One that takes longer ends its process: nothing else can stop it.
inline absl::Duration ReturnGrace(absl::Duration timeout) {
  return std::max(timeout, absl::Seconds(5));
}

}  // namespace crosshatch

#endif  // CROSSHATCH_COMM_RETURN_GRACE_H_
