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

/// The address of rank 0's coordinator, and the secret of the job.
struct RendezvousEndpoint {
  /// Names or addresses (IPv6 ones in brackets), separated by commas.
  std::string host = {};
  int port = 0;
  /// Only processes with this token join the job.
  std::string token = {};
};

struct LaunchInfo {
  Launcher launcher = Launcher::kNone;
  const char* launcher_name = "nobody";  ///< E.g. "mpirun", for messages.
  int rank = 0;
  int size = 1;  ///< Processes of the job.
  /// Among the processes of this host; -1 if the launcher does not set it.
  int local_rank = -1;
  int local_size = -1;
  RendezvousEndpoint coordinator;
  /// Whether MPI can connect the processes, as under mpirun and srun
  /// --mpi=pmix; if not they use UCX.
  bool mpi_knows_peers = false;
  /// Why this process cannot run; else empty. It joins so that the job reports
  /// it once, and reports it itself if it cannot join.
  std::string wrong;

  /// Returns whether `rank` is one of `size`. If not, `wrong` is the reason;
  /// unknown ones are -1 and 0.
  bool is_rank() const { return rank >= 0 && rank < size; }
  /// Returns whether this process reports for its host what it cannot report to
  /// the job: true unless the launcher numbers it and it is not the first.
  bool is_first_of_host() const { return local_rank <= 0; }
};

using Environment = std::map<std::string, std::string>;

/// Returns the variables of this process.
Environment LaunchEnvironment();

/// Detects the launcher of this process, and its rank. Of nested launchers the
/// innermost counts: the first of torchrun, mpirun, plain variables, srun.
/// \error kInvalidArgument naming the missing or invalid variable and valid
///     values, if this process cannot join to report it.
absl::StatusOr<LaunchInfo> DetectLaunch(const Environment& environment);

/// See LaunchInfo::is_first_of_host; for errors of DetectLaunch.
bool IsFirstOfHost(const Environment& environment);

/// Returns "HOST:PORT" as an endpoint without a token. An IPv6 address may have
/// brackets.
/// \error kInvalidArgument
absl::StatusOr<RendezvousEndpoint> ParseEndpoint(const std::string& text);

/// Returns `host` as it stands before ":PORT": an IPv6 address in brackets.
std::string Bracketed(const std::string& host);

/// Returns the first host of a list in Slurm's syntax: "n01" of
/// "n[01-04,7],m3". Empty if there is none.
std::string FirstHost(const std::string& nodes);

}  // namespace crosshatch

#endif  // CROSSHATCH_LAUNCH_LAUNCH_INFO_H_
