// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_LAUNCH_PROCESS_RUN_H_
#define CROSSHATCH_LAUNCH_PROCESS_RUN_H_

#include <functional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/launch/launch_plan.h"
#include "crosshatch/launch/run_options.h"

namespace crosshatch {

/// Prints `text` on a line of its own, after this process's prefix.
using PrintLine = std::function<void(const std::string& text)>;

/// Runs `fn` as this process's rank: joins the job's coordinator
/// (comm/coordination), which rank 0's process runs, and then starts MPI or
/// UCX.
///
/// Rank 0 prints the job's error as soon as it is known. If rank 0 itself is
/// lost, the lowest remaining rank of each host prints it. A process only
/// prints its own error if no other process does.
///
/// \pre plan.engine is kProcesses.
/// \param print called from any thread
/// \returns the job's result.
absl::Status RunAsProcess(const LaunchPlan& plan, const RunOptions& options,
                          absl::FunctionRef<absl::Status(World&)> fn,
                          const PrintLine& print);

}  // namespace crosshatch

#endif  // CROSSHATCH_LAUNCH_PROCESS_RUN_H_
