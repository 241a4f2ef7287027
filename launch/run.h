// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_LAUNCH_RUN_H_
#define CROSSHATCH_LAUNCH_RUN_H_

/// \file
/// Run: what main of a training program calls. docs/running.md goes through the
/// ways to start one.

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/launch/run_options.h"

namespace crosshatch {

/// Finds out how this program was started and runs `fn` as the ranks of this
/// process: one, where mpirun, srun, torchrun or variables say which, else
/// options.ranks threads. Catches SIGTERM and SIGINT from the call of `fn` on:
/// a first one does no more than make StopRequested true (launch/stop.h), and a
/// program that never calls that goes on until a second one ends it. Before
/// that, as while other ranks are waited for, the first one ends the process
/// within a second or two.
/// What goes wrong is printed to stderr once for the job, with every rank that
/// is meant; where processes cannot reach one another, once on each host.
/// A process that is a rank runs one job: where that went well, MPI, if Run had
/// started it, is finalised before Run returns.
///
///     int main(int argc, char** argv) { return ch::Run(argc, argv, Train); }
///
/// \param argv its flags (launch/launch_flags.h, and those of the program) are
///     parsed, and go before what `options` says. --help prints those of Run
///     and of the source that is named as the program.
/// \returns the status to exit with: 0; 1 after an error; after a stop
///     options.stop_status.
/// \threadsafety the main thread, one at a time.
int Run(int argc, char** argv, absl::FunctionRef<absl::Status(World&)> fn,
        RunOptions options = {});

/// The same for a program that has parsed its flags. Its name for messages is
/// that of its file.
int Run(absl::FunctionRef<absl::Status(World&)> fn, const RunOptions& options);

}  // namespace crosshatch

#endif  // CROSSHATCH_LAUNCH_RUN_H_
