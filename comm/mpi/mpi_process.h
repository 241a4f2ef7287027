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

/// MPI in this process, from the first use to the process's exit, where it is
/// finalised if its last job has ended on all processes together: finalising
/// waits for all of them.
/// \threadsafety one thread at a time, and none while a job runs.
class MpiProcess {
 public:
  /// Initialises MPI where that has not been done.
  /// \error why it cannot be used: it could not be initialised, or finalised
  ///     already, or a process of an earlier job is lost.
  static absl::StatusOr<MpiProcess*> Get();

  /// See EndMpi.
  static void End();

  /// Returns a link with messages of its own, made by all processes together.
  /// Messages that an earlier job has left do not reach it.
  /// \param ranks of the link, from 0 on; 0: all processes. Other processes
  /// cannot
  ///     use the link.
  /// \param failure called again and again; not OK if a process will not come.
  /// \error kDeadlineExceeded if not all have come within `timeout`; `failure`.
  absl::StatusOr<std::unique_ptr<Link>> Open(
      int ranks, absl::Duration timeout,
      absl::FunctionRef<absl::Status()> failure);
  /// No process has anything under way on `link`, one of Open: gives back what
  /// it took.
  void Close(std::unique_ptr<Link> link);
  /// The job of the last Open has ended on all processes together; or it is one
  /// that this process has no part in, and goes on without it.
  /// \param patience bounds MPI's end, which the others take about now too; at
  ///     least five seconds are used, and at most thirty.
  void EndJob(absl::Duration patience, bool had_part = true);
  /// A process is lost: nothing works any more, and finalising would hang.
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
  /// No process has left alone since the last job, as one that calls exit in a
  /// job does.
  bool is_in_step_ = false;
  bool had_job_ = false;
  /// The others end about when this process does.
  bool had_part_ = true;
  absl::Duration patience_;
  absl::Status broken_;
};

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_COMM_MPI_MPI_PROCESS_H_
