// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_LOCAL_LOCAL_HUB_H_
#define CROSSHATCH_COMM_LOCAL_LOCAL_HUB_H_

/// \file
/// The state that the ranks of one local run share.

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "crosshatch/base/wait_graph.h"
#include "crosshatch/comm/group_key.h"
#include "crosshatch/comm/job_failure.h"
#include "crosshatch/comm/local/local_group.h"
#include "crosshatch/comm/watch_clock.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch::internal {

/// The groups of a run, and its failure (job_failure.h).
/// \threadsafety all members may be called from any thread.
class LocalHub {
 public:
  explicit LocalHub(int ranks)
      : contexts_(ranks), turns_(static_cast<size_t>(ranks)) {}
  LocalHub(const LocalHub&) = delete;
  LocalHub& operator=(const LocalHub&) = delete;

  WaitGraph& graph() { return graph_; }

  /// Poisons `context` when the run fails, from now until Leave. All ranks
  /// enter before the first group is made.
  void Enter(RankContext& context);
  void Leave(int rank);

  /// Returns the group of `key`; the first call makes it, with its timeout.
  std::shared_ptr<LocalGroup> Group(const GroupKey& key,
                                    absl::Duration timeout);

  /// Fails the run because of `rank`. `error` poisons it; the others get
  /// kAborted.
  void FailRank(int rank, const absl::Status& error);
  /// Fails the run because of a group. `error`, which names the group, poisons
  /// its members.
  /// \returns the members' error: `error`, or that of an earlier failure.
  absl::Status FailGroup(const LocalGroup& group, const absl::Status& error);

  /// Returns OK, or the result of the failed run.
  absl::Status failure() const;

  /// Counts of the collectives and exchanges of a rank, on all its streams; on
  /// a cache line of their own.
  struct alignas(64) Turns {
    std::atomic<int64_t> begun{0};
    std::atomic<int64_t> ended{0};
  };
  Turns& turns(int rank) { return turns_[static_cast<size_t>(rank)]; }

  /// Fails the run if a member of any group has waited for more than the
  /// group's timeout, in the group that keeps the others waiting (late_wait.h).
  /// Called by the watchdog.
  void CheckDeadlines(const WatchMoment& now);

 private:
  /// Fails the run and returns the error of the members of `group`.
  /// \param group the failed one; null for none
  absl::Status Fail(const FailureNotice& failure, const LocalGroup* group);
  std::vector<std::shared_ptr<LocalGroup>> Groups() const;

  WaitGraph graph_;
  mutable std::mutex mutex_;
  std::vector<RankContext*> contexts_;
  std::map<GroupKey, std::shared_ptr<LocalGroup>> groups_;
  /// The first failure.
  std::optional<FailureNotice> failure_;
  /// The group that it is the failure of; null for that of a rank.
  const LocalGroup* failed_group_ = nullptr;
  std::vector<Turns> turns_;
};

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_COMM_LOCAL_LOCAL_HUB_H_
