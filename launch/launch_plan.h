// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_LAUNCH_LAUNCH_PLAN_H_
#define CROSSHATCH_LAUNCH_LAUNCH_PLAN_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "crosshatch/launch/launch_info.h"
#include "crosshatch/launch/run_options.h"

namespace crosshatch {

/// What a process is to run.
struct LaunchPlan {
  Backend backend = Backend::kLocal;  ///< Never kAuto.
  int ranks = 1;                      ///< Of the job.
  /// kMpi: this process in it.
  LaunchInfo info;
};

/// Reads off its environment what a process is to run. Pure.
/// \error kInvalidArgument naming the option or variable and what would be
///     right.
absl::StatusOr<LaunchPlan> PlanLaunch(const RunOptions& options,
                                      const Environment& environment);

/// Whether this process is to say what is the same on all ranks, as --help: the
/// one of rank 0, or one that knows of no others.
bool SpeaksForAll(const Environment& environment);

/// Whether what the program asks for fits. Apart, since what is wrong is wrong
/// on all ranks, which have a plan and can meet to say it once.
/// \error kInvalidArgument as above.
absl::Status CheckPlan(const LaunchPlan& plan, const RunOptions& options);

}  // namespace crosshatch

#endif  // CROSSHATCH_LAUNCH_LAUNCH_PLAN_H_
