// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_END_MPI_H_
#define CROSSHATCH_COMM_END_MPI_H_

namespace crosshatch {

/// Finalises MPI after the last job of this process (RunMpi in world.h), while
/// the job is still watched. Otherwise MPI is finalised when the process exits.
/// Does nothing if MPI does not run here, or if the processes have not ended
/// the last job together.
///
/// Waits, without a timeout, for the other processes, each of which calls it or
/// exits. This process cannot run another job.
/// \threadsafety one thread at a time, and none while a job runs.
void EndMpi();

}  // namespace crosshatch

#endif  // CROSSHATCH_COMM_END_MPI_H_
