// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_LAUNCH_STOP_H_
#define CROSSHATCH_LAUNCH_STOP_H_

/// \file
/// Stopping a run by SIGTERM or SIGINT: what the end of a Slurm allocation, a
/// preemption and Ctrl-C send. Run (launch/run.h) listens; the program asks
/// between its steps, and all ranks get the same answer at the same step.

#include <condition_variable>
#include <csignal>
#include <mutex>
#include <thread>

#include "absl/status/statusor.h"
#include "crosshatch/comm/world.h"

namespace crosshatch {

/// Whether any rank's process was told to stop. All ranks call it at the same
/// places and get the same answer there; one small exchange each time. Once it
/// was true, the rank's function is to end without an error, and the run ends
/// with RunOptions::stop_status.
/// \error what went wrong with the exchange.
absl::StatusOr<bool> StopRequested(World& world);

/// While there is one, a first SIGTERM or SIGINT of this process is what
/// StopRequested tells; one that comes a second or more after it ends the
/// process as if nobody listened. What comes before that is the same stop: a
/// terminal signals the launcher and all it started, and the launcher again.
/// \threadsafety at most one at a time in a process, made and destroyed while
///     no ranks run.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  /// Whether StopRequested has been true.
  bool was_agreed() const;

 private:
  struct sigaction term_before_;
  struct sigaction int_before_;
};

/// Ends the process by a stop signal that StopSignals has caught, about a
/// second after it: what the job fails with at the same time, as when mpirun
/// signals its processes because one has ended, can be printed till then. For
/// as long as there is one: before a rank's function runs, there is nothing to
/// save.
class EndsByStopSignal {
 public:
  EndsByStopSignal();
  ~EndsByStopSignal();
  EndsByStopSignal(const EndsByStopSignal&) = delete;
  EndsByStopSignal& operator=(const EndsByStopSignal&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_over_ = false;
  std::thread thread_;
};

}  // namespace crosshatch

#endif  // CROSSHATCH_LAUNCH_STOP_H_
