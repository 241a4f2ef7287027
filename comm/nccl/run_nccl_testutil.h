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
  /// The number of devices, which ranks share in turn. 0: one per rank if
  /// possible.
  int devices = 0;
  /// Without backends, which RunNccl sets.
  JobOptions job = {.timeout = absl::Minutes(1)};
  /// By rank; empty, or entries may be null. Outlive the run.
  std::vector<FailureChannel*> channels;
};

/// Runs `fn` on NCCL ranks, with threads as processes: on emulated devices with
/// an emulated NCCL, or in tests on GPUs with the toolkit's. It must be the
/// first call of the CUDA runtime in its test, with at most 8 ranks. Expects
/// that all ended together with one result.
/// \returns that result.
absl::Status RunNccl(int ranks, absl::FunctionRef<absl::Status(World&)> fn,
                     const RunNcclOptions& options = {});

}  // namespace crosshatch

#endif  // CROSSHATCH_COMM_NCCL_RUN_NCCL_TESTUTIL_H_
