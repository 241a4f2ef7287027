// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_MPI_RUN_PROCESS_H_
#define CROSSHATCH_COMM_MPI_RUN_PROCESS_H_

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "crosshatch/comm/mpi/link.h"
#include "crosshatch/comm/world.h"

namespace crosshatch::internal {

/// What is wrong with `options` whatever the job; OK if nothing is.
absl::Status CheckOptions(const MpiOptions& options);

/// Returns OK, or the error of a process that is lost, as far as the failure
/// channel of `options` knows.
absl::Status LossOf(const MpiOptions& options);

struct ProcessResult {
  /// How the job ended: the same in every process if they ended together.
  absl::Status status;
  /// All processes have taken leave of one another: the link is quiet.
  /// Otherwise one is lost, does not come back, or cannot be reached.
  bool ended_together = false;
};

/// Runs `fn` as the rank that `link` is an end of.
/// \param options have been checked.
ProcessResult RunProcess(Link& link, absl::FunctionRef<absl::Status(World&)> fn,
                         const MpiOptions& options);

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_COMM_MPI_RUN_PROCESS_H_
