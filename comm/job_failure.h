// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_JOB_FAILURE_H_
#define CROSSHATCH_COMM_JOB_FAILURE_H_

/// \file
/// What is said to whom when a job fails. A job fails as a whole: the first
/// failure poisons all ranks and ends all groups, so that nobody waits for one
/// who will not come. Those that failed by themselves get their own error, all
/// others are told of it.

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "crosshatch/comm/failure_channel.h"

namespace crosshatch {

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
