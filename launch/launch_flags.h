// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_LAUNCH_LAUNCH_FLAGS_H_
#define CROSSHATCH_LAUNCH_LAUNCH_FLAGS_H_

/// \file
/// The flags of every program that Run starts: --engine, --transport,
/// --fake_rank, --device, --deterministic, --tf32, --timeout, --start_timeout,
/// --heartbeat_timeout, --log_prefix, --stop_status.

#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "crosshatch/launch/run_options.h"

namespace crosshatch {

/// Parses the command line by absl::ParseCommandLine, which prints an error, or
/// the flags for --help, and ends the process with status 1. Only one process
/// of a host prints, if the launcher numbers them.
/// \param source the path of the file that defines the program's flags, or its
///     end; --help lists those flags and Run's.
/// \error kInvalidArgument for an argument that is no flag.
absl::Status ParseFlags(int argc, char** argv, const std::string& source);

/// Returns the values of the flags that are defined in `source`, except those
/// named in `except`, as "--NAME=VALUE" in the order of their names, for
/// RunOptions::agreed.
std::vector<std::string> FlagValues(const std::string& source,
                                    const std::set<std::string>& except);

/// Sets `options` from Run's flags on the command line.
/// \error kInvalidArgument naming the flag and the valid values.
absl::Status ReadLaunchFlags(RunOptions& options);

}  // namespace crosshatch

#endif  // CROSSHATCH_LAUNCH_LAUNCH_FLAGS_H_
