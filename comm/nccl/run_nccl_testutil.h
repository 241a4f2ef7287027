// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_NCCL_RUN_NCCL_TESTUTIL_H_
#define CROSSHATCH_COMM_NCCL_RUN_NCCL_TESTUTIL_H_

#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "crosshatch/comm/job_failure.h"
#include "crosshatch/comm/nccl/nccl_options.h"
#include "crosshatch/comm/world.h"

namespace crosshatch {

struct RunNcclOptions {
  NcclOptions nccl;
  /// The ranks are dealt out to so many; 0: to one each, as far as there are
  /// such.
  int devices = 0;
  /// Without backends: RunNccl sets them.
  JobOptions job = {.timeout = absl::Minutes(1)};
  /// By rank; empty, or entries may be null. Outlive the run.
  std::vector<FailureChannel*> channels;
};

/// Runs `fn` as ranks that are processes do, by NCCL, each process a thread of
/// this one: on emulated devices by an emulated NCCL, or in tests on GPUs by
/// the toolkit's. The first call of the runtime in its test, and of at most 8
/// ranks. Expects that all ended together, with one result. \returns that.
absl::Status RunNccl(int ranks, absl::FunctionRef<absl::Status(World&)> fn,
                     const RunNcclOptions& options = {});

}  // namespace crosshatch

#endif  // CROSSHATCH_COMM_NCCL_RUN_NCCL_TESTUTIL_H_
