// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_END_MPI_H_
#define CROSSHATCH_COMM_END_MPI_H_

namespace crosshatch {

/// Finalises MPI after the last job of this process (RunMpi in world.h), so
/// that whoever watches over the job sees this through too. Without it MPI is
/// finalised when the process exits. Does nothing where MPI does not run here
/// or the processes have not ended the last job together.
///
/// Waits for the other processes, each of which calls it or exits; nothing
/// bounds the time it takes where one is lost meanwhile. No job can be run in
/// this process after it.
/// \threadsafety one thread at a time, and none while a job runs.
void EndMpi();

}  // namespace crosshatch

#endif  // CROSSHATCH_COMM_END_MPI_H_
