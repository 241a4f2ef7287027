// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_LAUNCH_LAUNCH_FLAGS_H_
#define CROSSHATCH_LAUNCH_LAUNCH_FLAGS_H_

/// \file
/// The flags of every program that Run starts: --backend, --fake_rank,
/// --device, --deterministic, --tf32, --timeout, --start_timeout,
/// --heartbeat_timeout, --log_prefix, --stop_status.

#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "crosshatch/launch/run_options.h"

namespace crosshatch {

/// Sets the program's Abseil flags to what the command line says. Unlike
/// absl::ParseCommandLine it leaves it to the caller to end the process, so
/// that a job of many processes can say what is wrong once.
/// Flags are --NAME=VALUE, --NAME VALUE and, for those that are true or false,
/// --NAME and --noNAME.
/// \error kInvalidArgument for an argument that is no flag of the program, and
///     for a value that is none of the flag's.
absl::Status ParseFlags(int argc, char** argv);

/// Whether one of the arguments asks for help.
bool AsksForHelp(int argc, char** argv);

/// Prints `text` to stdout, on one of the processes of a job.
/// \returns the program's status: 0, or 1 where it could not be written, which
///     stderr is told
int PrintHelp(const std::string& text);

/// The flags that are defined in the source files whose paths end so, and those
/// of Run, with their defaults, for a program's --help.
std::string DescribeFlags(const std::string& source);

/// The values of the flags that are defined in the source files whose paths end
/// so, but for those named in `except`, as "--NAME=VALUE" in the order of their
/// names: what a program has its ranks agree on (RunOptions::agreed).
std::vector<std::string> FlagValues(const std::string& source,
                                    const std::set<std::string>& except);

/// Puts what flags of Run the command line had into `options`.
/// \error kInvalidArgument naming the flag and what would be right.
absl::Status ReadLaunchFlags(RunOptions& options);

}  // namespace crosshatch

#endif  // CROSSHATCH_LAUNCH_LAUNCH_FLAGS_H_
