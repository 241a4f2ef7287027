// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_LAUNCH_RUN_H_
#define CROSSHATCH_LAUNCH_RUN_H_

/// \file
/// Run, the main function of a training program. See docs/running.md.

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/launch/run_options.h"

namespace crosshatch {

/// Runs `fn` as the ranks of this process: as one rank if mpirun, srun,
/// torchrun or variables set the rank, else on options.ranks threads.
///
/// From the call of `fn` on, the first SIGTERM or SIGINT only makes
/// StopRequested true (launch/stop.h), and a second one ends the process.
/// Before that, for example while the process waits for other ranks, the first
/// one ends it within two seconds.
///
/// Prints an error to stderr once for the job, with the ranks that it is about;
/// if rank 0 is lost or cannot be found, once per host. A process that is a
/// rank runs one job; after a success Run finalises MPI.
///
///     int main(int argc, char** argv) { return ch::Run(argc, argv, Train); }
///
/// \param argv the flags of Run and of the program, parsed by ParseFlags
///     (launch/launch_flags.h); they override `options`.
/// \returns the exit status: 0; 1 after an error; options.stop_status after a
///     stop.
/// \threadsafety called on the main thread, once at a time.
int Run(int argc, char** argv, absl::FunctionRef<absl::Status(World&)> fn,
        RunOptions options = {});

/// Does the same for a program that has parsed its flags.
int Run(absl::FunctionRef<absl::Status(World&)> fn, const RunOptions& options);

}  // namespace crosshatch

#endif  // CROSSHATCH_LAUNCH_RUN_H_
