// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_JOB_FAILURE_H_
#define CROSSHATCH_COMM_JOB_FAILURE_H_

/// \file
/// How a job fails. It fails as a whole: the first failure poisons all ranks
/// and ends all groups, so that nobody waits for a rank that will not come.
/// Ranks that failed by themselves get their own error, all others get
/// kAborted.

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace crosshatch {

/// Why a job fails.
struct FailureNotice {
  /// World ranks that failed by themselves: one, or the members of a group.
  std::vector<int> world_ranks;
  /// Whether the failure is one between the members of a group, which `error`
  /// names; otherwise it is one rank's alone.
  bool of_group = false;
  /// The processes of world_ranks are gone, or do not answer: nothing will
  /// come from them any more, and nothing reads their peers' memory.
  bool process_lost = false;
  /// The processes of world_ranks live, but cannot use the engine's link: as
  /// with those that are gone nothing comes from them any more.
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

  /// Reports to the coordinator that the job fails, as this process has found.
  /// Does not block. The coordinator alone decides what the job failed with,
  /// and reports that to all processes, this one included (OnFailure).
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
