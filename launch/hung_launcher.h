// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_LAUNCH_HUNG_LAUNCHER_H_
#define CROSSHATCH_LAUNCH_HUNG_LAUNCHER_H_

#include <string>

namespace crosshatch {

/// For a process of a job on one host that has lost another one. The mpirun of
/// Open MPI 4.1 may then not end when its processes have, since its PMIx server
/// waits for itself, and it leaves the shared memory of a window whose process
/// was killed as it made it. Starts a shell that outlives this process: once
/// mpirun has had no living process for some seconds, in which it was not
/// stopped, the shell ends it by SIGKILL and removes what it would have;
/// however mpirun has ended, the job's shared memory goes. Does nothing where
/// the parent is no mpirun, or another process of this host has started one.
/// \param directory mpirun's own for its session, which is named after it and
///     is removed with it.
/// \param job the number that MPI gave the job: what MPI keeps in memory that
///     processes share has it in its names.
void EndLauncherThatHangs(const std::string& directory, const std::string& job);

}  // namespace crosshatch

#endif  // CROSSHATCH_LAUNCH_HUNG_LAUNCHER_H_
