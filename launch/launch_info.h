// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_LAUNCH_LAUNCH_INFO_H_
#define CROSSHATCH_LAUNCH_LAUNCH_INFO_H_

/// \file
/// The job of a process, as the environment describes it.

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/statusor.h"

namespace crosshatch {

/// The launcher of this process.
enum class Launcher : uint8_t {
  kNone,     ///< A user: the job is this process.
  kOpenMpi,  ///< mpirun.
  kSlurm,    ///< srun.
  kTorchrun,
  kPlain,  ///< Something that sets RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT.
};

/// "mpirun", for messages.
const char* LauncherName(Launcher launcher);

struct LaunchInfo {
  Launcher launcher = Launcher::kNone;
  /// See IsFirstOfHost.
  bool is_first_of_host = true;
  int rank = 0;
  int size = 1;  ///< Processes of the job.
  /// Among the processes of this host; -1 if the launcher does not set it.
  int local_rank = -1;
  int local_size = -1;
  /// The address of rank 0's coordinator, an IPv6 address in brackets; empty
  /// and 0 if the launcher does not set it.
  std::string host;
  int port = 0;
  /// Identifies the job as well as the launcher's variables do. Not a secret.
  std::string job;
  /// Whether MPI can connect the processes, as under mpirun and srun
  /// --mpi=pmix; if not they use UCX.
  bool mpi_knows_peers = false;
  /// The file to which rank 0 writes its coordinator's endpoint, in mpirun's
  /// directory for the job. Empty if there is none or there are several hosts.
  std::string rendezvous_file;
  /// Why this process cannot be a rank of the job, or empty. The coordinator
  /// reports it, or this process if it cannot join. `rank` is then -1 and
  /// `size` 0 if unknown.
  std::string outside;
  /// Why this rank cannot run, or empty. All ranks join to report it once.
  std::string wrong;
  /// Whether `wrong` concerns the endpoint or token. If the other ranks have
  /// the right ones, this rank cannot meet them.
  bool may_miss_others = false;
  /// The secret of the job (CROSSHATCH_JOB_TOKEN); empty if the user set none.
  std::string token;
  /// Different for each job (CROSSHATCH_JOB_ID); empty if the user set none.
  std::string id;
};

using Environment = std::map<std::string, std::string>;

/// Returns the variables of this process that DetectLaunch reads.
Environment LaunchEnvironment();

/// Detects the launcher of this process, and its rank. Of nested launchers the
/// innermost counts: the first of torchrun, mpirun, plain variables, srun.
/// \error kInvalidArgument naming the missing or invalid variable and valid
///     values, if this process cannot join to report it.
absl::StatusOr<LaunchInfo> DetectLaunch(const Environment& environment);

/// Returns whether this process reports for its host errors that it cannot
/// report to the job. Only false if the launcher says that it is not the host's
/// first.
bool IsFirstOfHost(const Environment& environment);

/// Returns `host` in the form used before ":PORT": an IPv6 address in brackets.
std::string Bracketed(const std::string& host);

/// Returns the first host of a list in Slurm's syntax: "n01" of
/// "n[01-04,7],m3". Empty if there is none.
std::string FirstHost(const std::string& nodes);

}  // namespace crosshatch

#endif  // CROSSHATCH_LAUNCH_LAUNCH_INFO_H_
