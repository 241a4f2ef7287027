// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_LOCAL_LOCAL_HUB_H_
#define CROSSHATCH_COMM_LOCAL_LOCAL_HUB_H_

/// \file
/// What the ranks of one local run share.

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

  /// The rank's context exists from here to Leave. All ranks enter before any
  /// asks for a group.
  void Enter(RankContext& context);
  void Leave(int rank);

  /// The group of `key`, made when first asked for.
  std::shared_ptr<LocalGroup> Group(const GroupKey& key);

  /// The run fails because of `rank`, whose error becomes its poison; the
  /// others are told of it.
  void FailRank(int rank, const absl::Status& error);
  /// The run fails in a group; `error`, which names it, poisons its members.
  /// Gives what they are told: `error`, or what failed before.
  absl::Status FailGroup(const LocalGroup& group, const absl::Status& error);

  /// OK, or what failed first.
  absl::Status failure() const;

  /// The collectives and exchanges of a rank, on all its streams; on a cache
  /// line of its own.
  struct alignas(64) Turns {
    std::atomic<int64_t> begun{0};
    std::atomic<int64_t> ended{0};
  };
  Turns& turns(int rank) { return turns_[static_cast<size_t>(rank)]; }

  /// For a watch, at each look: fails the run if a member of any group has
  /// waited for more than `timeout`, in the group that keeps the others waiting
  /// (late_wait.h).
  void CheckDeadlines(const WatchMoment& now, absl::Duration timeout);

 private:
  /// Gives what members of `group` are told of the first failure.
  /// \param group that failed by itself; null for none.
  absl::Status Fail(const FailureNotice& failure, const LocalGroup* group);
  std::vector<std::shared_ptr<LocalGroup>> Groups() const;

  WaitGraph graph_;
  mutable std::mutex mutex_;
  std::vector<RankContext*> contexts_;
  std::map<GroupKey, std::shared_ptr<LocalGroup>> groups_;
  /// The first.
  std::optional<FailureNotice> failure_;
  const LocalGroup* failed_group_ = nullptr;  ///< Whose own it is, if any's.
  std::vector<Turns> turns_;
};

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_COMM_LOCAL_LOCAL_HUB_H_
