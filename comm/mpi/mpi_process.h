// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_MPI_MPI_PROCESS_H_
#define CROSSHATCH_COMM_MPI_MPI_PROCESS_H_

/// \file
/// MPI in this process, and the links of jobs on it. Only the source of this
/// file calls MPI.

#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "crosshatch/comm/mpi/link.h"
#include "crosshatch/comm/world.h"

namespace crosshatch::internal {

/// MPI in this process, from the first use to the process's exit. There it is
/// finalised if all processes have ended the last job together, because
/// finalising waits for all of them.
/// \threadsafety one thread at a time, and none while a job runs.
class MpiProcess {
 public:
  /// Initialises MPI if necessary.
  /// \error why it cannot be used: initialisation failed, it was finalised, or
  ///     a process of an earlier job is lost.
  static absl::StatusOr<MpiProcess*> Get();

  /// See EndMpi.
  static void End();

  /// Creates a link together with all processes. Messages of earlier jobs do
  /// not reach it.
  /// \param ranks of the link, from 0 on; 0: all processes. Other processes
  ///     cannot use the link.
  /// \param failure called repeatedly; not OK if a process will not come
  /// \error kDeadlineExceeded if not all have come within `timeout`; `failure`.
  absl::StatusOr<std::unique_ptr<Link>> Open(
      int ranks, absl::Duration timeout,
      absl::FunctionRef<absl::Status()> failure);
  /// Frees a link of Open.
  /// \pre No process has messages in flight on it.
  void Close(std::unique_ptr<Link> link);
  /// Records that all processes have ended the job of the last Open together,
  /// or that it is a job without this process.
  /// \param patience bounds MPI's finalisation, for which the others are ready;
  ///     at least five seconds are used, and at most thirty
  void EndJob(absl::Duration patience, bool had_part = true);
  /// Records that a process is lost: nothing works any more, and finalising
  /// would hang.
  void Break(const absl::Status& why);

  /// See ExchangeByMpi.
  absl::StatusOr<std::vector<std::string>> Exchange(const std::string& blob);

 private:
  struct State;

  MpiProcess();
  ~MpiProcess();
  static MpiProcess& Instance();
  bool CanBeFinalised() const;
  void Finalise();
  absl::Status Start();
  absl::Status MeetNeighbours();

  const std::unique_ptr<State> state_;
  bool started_ = false;
  /// Whether no process has left on its own since the last job, for example by
  /// calling exit.
  bool is_in_step_ = false;
  bool had_job_ = false;
  /// Whether the others end about when this process does.
  bool had_part_ = true;
  absl::Duration patience_;
  absl::Status broken_;
};

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_COMM_MPI_MPI_PROCESS_H_
