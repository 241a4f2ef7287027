// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_JOB_FAILURE_H_
#define CROSSHATCH_COMM_JOB_FAILURE_H_

/// \file
/// Failures of a job. A job fails as a whole: the first failure poisons all
/// ranks and ends all groups, so that no rank waits for one that will not come.
/// Ranks that failed on their own get their error, all others get kAborted.

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace crosshatch {

/// The cause of a job's failure.
struct FailureNotice {
  /// World ranks that failed on their own: one, or the members of a group.
  std::vector<int> world_ranks;
  /// Whether it is a failure between the members of a group, which `error`
  /// names, and not of one rank.
  bool of_group = false;
  /// Whether the processes of world_ranks have died or do not answer. They send
  /// nothing and do not access their peers' memory any more.
  bool process_lost = false;
  /// Whether the processes of world_ranks are alive but cannot use the engine's
  /// link, so that they send nothing any more.
  bool cut_off = false;
  /// Not OK.
  absl::Status error;
};

/// One process's connection to the coordinator of one job. Outlives the job.
/// Its implementation also bounds how long a rank may take to return once the
/// job has failed. A thread cannot be stopped, so its process is ended.
/// \threadsafety all members may be called from any thread.
class FailureChannel {
 public:
  using Listener = std::function<void(const FailureNotice& notice)>;
  using Activity = std::function<std::string()>;

  virtual ~FailureChannel() = default;

  /// Reports a failure of this process to the coordinator. Does not block. The
  /// coordinator decides on the job's failure and reports it to all processes,
  /// including this one (OnFailure).
  virtual void Report(const FailureNotice& notice) = 0;

  /// Returns OK, or the error of the first process that is lost or cut off.
  virtual absl::Status loss() const = 0;

  /// Calls `listener`, on a thread of the channel, with the job's failure and
  /// then with each process that is lost or cut off, earlier ones included. The
  /// listener does not block. Null removes it: once this has returned, no call
  /// is under way.
  virtual void OnFailure(Listener listener) = 0;

  /// Sets the function that returns one line on what this rank does, e.g. "in
  /// all_gather #17 'layers.0' of group 'fsdp' (ranks 0, 2) for 3.2 s". It is
  /// called when a failure is reported; collectives record nothing for it. Null
  /// removes it as for OnFailure.
  virtual void SetActivity(Activity activity) = 0;
};

/// Returns `text`. If it is longer than `most` bytes, returns its beginning and
/// its length.
std::string BoundedText(const std::string& text, size_t most);

/// Returns `error` with a text of at most 16 KiB and a few words, so that
/// messages about failures are small. The functions below bound theirs, too.
absl::Status BoundedError(const absl::Status& error);

/// Returns the result of the job, the same on all ranks. It names the rank that
/// failed alone, unless its error begins with "on rank" and so names ranks.
absl::Status ResultOf(const FailureNotice& failure);

/// Returns the error of ranks and groups that did not fail by themselves.
absl::Status InducedError(const FailureNotice& failure);

/// Returns what poisons `world_rank`.
absl::Status ErrorFor(const FailureNotice& failure, int world_rank);

}  // namespace crosshatch

#endif  // CROSSHATCH_COMM_JOB_FAILURE_H_
