// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_JOB_FAILURE_H_
#define CROSSHATCH_COMM_JOB_FAILURE_H_

/// \file
/// What is said to whom when a job fails. A job fails as a whole: the first
/// failure poisons all ranks and ends all groups, so that nobody waits for one
/// who will not come. Those that failed by themselves get their own error, all
/// others are told of it.

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace crosshatch {

/// Why a job fails, as one process tells the others.
struct FailureNotice {
  /// World ranks that failed by themselves: one, or the members of a group.
  std::vector<int> world_ranks;
  /// What went wrong went wrong between the members of a group, which `error`
  /// names (FailureOfGroup in comm/job_failure.h); otherwise with one rank
  /// alone (FailureOfRank).
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

/// One process's end of the channel, for one job. Outlives the job.
/// Whoever makes one also bounds how long a rank may take to come back once the
/// job has failed: a thread cannot be stopped, so its process is ended.
/// \threadsafety all members may be called from any thread.
class FailureChannel {
 public:
  using Told = std::function<void(const FailureNotice& notice)>;
  using Activity = std::function<std::string()>;

  virtual ~FailureChannel() = default;

  /// Reports to the coordinator that the job fails, as this process has found.
  /// Does not block. The coordinator alone decides what the job failed with,
  /// and reports that to all processes, this one included (OnFailure).
  virtual void Report(const FailureNotice& notice) = 0;

  /// Returns OK, or the error of the first process that is lost or cut off.
  virtual absl::Status loss() const = 0;

  /// From now on `told` is called, on a thread of the channel, with what the
  /// job failed with, be it this process's own Report, and then with all others
  /// that are lost or cut off; with those that came before too. It does not
  /// block. Null ends that: once this has returned, no call is under way.
  virtual void OnFailure(Told told) = 0;

  /// From now on `activity` is what to ask for one line on what this rank does,
  /// e.g. "in all_gather #17 'layers.0' of group 'fsdp' (ranks 0, 2) for 3.2
  /// s", when a failure is told: nothing is written down before, so that a
  /// collective pays nothing for it. Null ends that as for OnFailure.
  virtual void SetActivity(Activity activity) = 0;
};

struct JobFailure {
  /// The result of the job.
  absl::Status result;
  /// The ranks that failed by themselves, and their error, which is also that
  /// of their group if a group failed.
  std::vector<int> world_ranks;
  absl::Status own;
  /// For all other ranks and groups: kAborted.
  absl::Status induced;

  /// What poisons `world_rank`.
  const absl::Status& For(int world_rank) const;
};

/// Returns `text`, or of a longer one its beginning and how long it is: at most
/// `most` bytes and a few words.
std::string BoundedText(const std::string& text, size_t most);

/// Returns `error` with a text of at most 16 KiB and a few words. What ranks
/// send one another of a failure is small, however long a rank's own error is.
absl::Status BoundedError(const absl::Status& error);

/// `rank` failed with `error`, alone. Bounds its text, as the next one does.
/// The result names the rank, unless the error begins with "on rank": then it
/// names those that it happened on.
JobFailure FailureOfRank(int rank, const absl::Status& error);

/// A group of `world_ranks` failed with `error`, which names it.
JobFailure FailureOfGroup(std::vector<int> world_ranks,
                          const absl::Status& error);

/// What another process told of.
JobFailure FailureOf(const FailureNotice& notice);

}  // namespace crosshatch

#endif  // CROSSHATCH_COMM_JOB_FAILURE_H_
