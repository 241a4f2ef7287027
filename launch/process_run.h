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

/// What a rank's process has to say about its job: `text` without its prefix.
using Say = std::function<void(const std::string& text)>;

/// Runs `fn` as the one rank that this process is: joins the job's coordinator
/// (comm/coordination), which rank 0's process runs, and then MPI.
///
/// Of what goes wrong, one process speaks: that of rank 0, as soon as it is
/// known; if that is the one that is dead, one process of each host. A process
/// speaks of an error of its own besides if nobody else does.
///
/// \pre plan.backend is kMpi.
/// \param say called from any thread, for each line that this process prints.
/// \returns what the job ended with.
absl::Status RunAsProcess(const LaunchPlan& plan, const RunOptions& options,
                          absl::FunctionRef<absl::Status(World&)> fn,
                          const Say& say);

}  // namespace crosshatch

#endif  // CROSSHATCH_LAUNCH_PROCESS_RUN_H_
