// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_LAUNCH_LAUNCH_INFO_H_
#define CROSSHATCH_LAUNCH_LAUNCH_INFO_H_

/// \file
/// What a process can tell from its environment about the job it belongs to.

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/statusor.h"

namespace crosshatch {

/// Who started this process.
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
  /// Among the processes of this host; -1 where the launcher does not say.
  int local_rank = -1;
  int local_size = -1;
  /// Where rank 0's coordinator listens, an IPv6 address in brackets; empty and
  /// 0 where the launcher does not say.
  std::string host;
  int port = 0;
  /// What the processes of this job share and those of another do not, as far
  /// as the launcher says. No secret.
  std::string job;
  /// Whether MPI learns of the other processes from the launcher, as it does
  /// from mpirun and srun --mpi=pmix; where not they use UCX.
  bool mpi_knows_peers = false;
  /// The file in which rank 0 tells where its coordinator listens, in the
  /// directory that mpirun has for this job on this host. Empty where there is
  /// none, as where there are several hosts.
  std::string rendezvous_file;
  /// Not empty where this process is no rank that the job can have: what is
  /// wrong, for this process to say if it cannot join. The job says it else.
  /// Then `rank` is -1 and `size` 0 where they are not known.
  std::string outside;
  /// Not empty where it is a rank, but cannot run: what is wrong. All ranks
  /// can meet to say it once.
  std::string wrong;
  /// What is `wrong` is where or as what it meets the others: where they have
  /// it right it waits for them in vain.
  bool may_miss_others = false;
  /// Everything that takes part must know it (CROSSHATCH_JOB_TOKEN); empty
  /// where the user gave none.
  std::string token;
  /// Another one for each job (CROSSHATCH_JOB_ID); empty where the user gave
  /// none.
  std::string id;
};

using Environment = std::map<std::string, std::string>;

/// The variables of this process that DetectLaunch reads.
Environment LaunchEnvironment();

/// Of several launchers around one another the innermost counts, which is the
/// first of: torchrun, mpirun, plain variables, srun.
/// \error kInvalidArgument naming the variable that is missing or wrong and
///     what would be right, where no other process can be told of it.
absl::StatusOr<LaunchInfo> DetectLaunch(const Environment& environment);

/// Returns whether this process reports for its host what it cannot report to
/// the job: true unless the launcher says that it is not the host's first.
bool IsFirstOfHost(const Environment& environment);

/// Returns `host` as it stands before ":PORT": an IPv6 address in brackets.
std::string Bracketed(const std::string& host);

/// The first host of a list as Slurm writes it: "n01" of "n[01-04,7],m3".
/// Empty where there is none.
std::string FirstHost(const std::string& nodes);

}  // namespace crosshatch

#endif  // CROSSHATCH_LAUNCH_LAUNCH_INFO_H_
