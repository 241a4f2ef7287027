// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_LAUNCH_HUNG_LAUNCHER_H_
#define CROSSHATCH_LAUNCH_HUNG_LAUNCHER_H_

#include <string>

namespace crosshatch {

/// For a process of a job on one host that has lost another one: the mpirun of
/// Open MPI 4.1 may then not end when its processes have, since its PMIx server
/// waits for itself. Starts a shell that outlives this process and, once mpirun
/// has had no living process for some seconds, in which it was not stopped,
/// ends it by SIGKILL and removes what it would have. Does nothing where the
/// parent is no mpirun, or another process of this host has started one. \param
/// directory mpirun's own for its session, which is named after it and
///     is removed with it.
/// \param job the number that MPI gave the job: what MPI keeps in memory that
///     processes share has it in its names.
void EndLauncherThatHangs(const std::string& directory, const std::string& job);

}  // namespace crosshatch

#endif  // CROSSHATCH_LAUNCH_HUNG_LAUNCHER_H_
