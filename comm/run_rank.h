// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_RUN_RANK_H_
#define CROSSHATCH_COMM_RUN_RANK_H_

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "crosshatch/comm/world.h"

namespace crosshatch {

/// Checks what every engine needs before it starts.
/// \error kInvalidArgument if `timeout` is not positive, or the environment's
///     seed is invalid.
absl::Status CheckRun(absl::Duration timeout);

/// Runs one rank's function, drains its streams, and fails the job if either
/// ends with an error. An exception out of `fn` is an error of this rank, too.
/// \returns the first error.
absl::Status RunRank(World& world, absl::FunctionRef<absl::Status(World&)> fn);

}  // namespace crosshatch

#endif  // CROSSHATCH_COMM_RUN_RANK_H_
