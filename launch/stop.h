// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_LAUNCH_STOP_H_
#define CROSSHATCH_LAUNCH_STOP_H_

/// \file
/// Stopping a run by SIGTERM or SIGINT, which the end of a Slurm allocation, a
/// preemption and Ctrl-C send. Run (launch/run.h) catches them; the program
/// calls StopRequested between its steps, which returns the same on all ranks.

#include <csignal>

#include "absl/status/statusor.h"
#include "crosshatch/comm/world.h"

namespace crosshatch {

/// Returns whether any rank's process has received a stop signal. All ranks
/// call it at the same step and get the same answer; it costs one small
/// exchange. After true the rank's function must return without an error; the
/// run then exits with RunOptions::stop_status.
/// \error that of the exchange.
absl::StatusOr<bool> StopRequested(World& world);

/// Catches SIGTERM and SIGINT of this process during its lifetime.
/// StopRequested reports the first one. A signal that comes a second or more
/// later ends the process as by default; an earlier one is the same stop,
/// because a terminal signals the launcher and its processes, and the launcher
/// signals them again.
/// \threadsafety at most one in a process; its rank threads run while it
/// exists.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  /// Returns whether StopRequested has returned true.
  bool was_agreed() const;

 private:
  struct sigaction term_before_;
  struct sigaction int_before_;
};

}  // namespace crosshatch

#endif  // CROSSHATCH_LAUNCH_STOP_H_
