// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_LAUNCH_LAUNCH_PLAN_H_
#define CROSSHATCH_LAUNCH_LAUNCH_PLAN_H_

/// \file
/// Decisions before anything starts: the engine, the devices, and whether the
/// options fit.

#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "crosshatch/launch/launch_info.h"
#include "crosshatch/launch/run_options.h"
#include "crosshatch/tensor/device_backend.h"

namespace crosshatch {

/// The part of the job that a process runs.
struct LaunchPlan {
  EngineKind engine = EngineKind::kLocal;  ///< Never kAuto.
  int ranks = 1;                           ///< Of the job.
  /// This process in the job; with kProcesses.
  LaunchInfo info;
};

/// Plans what this process runs. Pure.
/// \error kInvalidArgument naming the option or variable and what would be
///     right.
absl::StatusOr<LaunchPlan> PlanLaunch(const RunOptions& options,
                                      const Environment& environment);

/// Checks that the options fit `plan`. Separate from PlanLaunch, because all
/// ranks fail equally and can join to report it once.
/// \error kInvalidArgument as of PlanLaunch.
absl::Status CheckPlan(const LaunchPlan& plan, const RunOptions& options);

/// Finds the devices of this machine's first `ranks` ranks:
/// options.job.backends or those of options.device; empty for the CPU. There
/// may be fewer.
/// \error why there is none or why one cannot be used, with the flag.
absl::StatusOr<std::vector<const DeviceBackend*>> FindDevices(
    const RunOptions& options, int ranks);

/// Returns at most `most` devices that `find` returns by index, up to its first
/// kNotFound.
/// \error that of `find` for any other, or for index 0.
absl::StatusOr<std::vector<const DeviceBackend*>> CollectDevices(
    absl::FunctionRef<absl::StatusOr<const DeviceBackend*>(int index)> find,
    int most);

/// Returns the device that a dry run simulates; null for the CPU. It need not
/// exist.
/// \error as of FindDevices.
absl::StatusOr<const DeviceBackend*> DryRunDevice(const RunOptions& options);

/// \name Options that must be equal on all processes
/// @{
/// Returns their text, for comparison.
std::string AgreedText(const RunOptions& options);
/// \param mine, of_first AgreedText of this process and of rank 0's.
/// \error kInvalidArgument naming each option that differs, with both values.
absl::Status CheckAgreed(const std::string& mine, const std::string& of_first);
/// @}

}  // namespace crosshatch

#endif  // CROSSHATCH_LAUNCH_LAUNCH_PLAN_H_
