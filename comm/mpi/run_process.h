// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_MPI_RUN_PROCESS_H_
#define CROSSHATCH_COMM_MPI_RUN_PROCESS_H_

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "crosshatch/comm/mpi/link.h"
#include "crosshatch/comm/world.h"

namespace crosshatch::internal {

/// Checks `options` independently of a job.
absl::Status CheckOptions(const MpiOptions& options);

/// Returns the error of a lost process that the failure channel of `options`
/// reports, or OK.
absl::Status LossOf(const MpiOptions& options);

struct ProcessResult {
  /// How the job ended: the same in every process if they ended together.
  absl::Status status;
  /// Whether all processes ended the job together, so that the link is quiet.
  /// Otherwise a process is lost, does not return, or cannot be reached.
  bool ended_together = false;
};

/// Runs `fn` as the rank of `link`.
/// \pre `options` have been checked.
ProcessResult RunProcess(Link& link, absl::FunctionRef<absl::Status(World&)> fn,
                         const MpiOptions& options);

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_COMM_MPI_RUN_PROCESS_H_
