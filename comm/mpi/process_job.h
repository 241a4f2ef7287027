// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_MPI_PROCESS_JOB_H_
#define CROSSHATCH_COMM_MPI_PROCESS_JOB_H_

/// \file
/// One job of an engine of processes, seen from one of them: its groups, its
/// failure, its end.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "crosshatch/base/event_sink.h"
#include "crosshatch/comm/data_plane.h"
#include "crosshatch/comm/group_key.h"
#include "crosshatch/comm/job_failure.h"
#include "crosshatch/comm/mpi/control_message.h"
#include "crosshatch/comm/mpi/link.h"
#include "crosshatch/comm/mpi/poller.h"
#include "crosshatch/comm/watch_clock.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch::internal {

/// What this process knows of one group. Guarded by the job's lock, but for the
/// messages of a round to which all have come, which nobody changes until the
/// round is closed.
struct JobGroup {
  using Clock = std::chrono::steady_clock;

  JobGroup(const GroupKey& key, int me);

  int size() const { return key.size(); }
  /// The index of `world_rank`, which is a member.
  int MemberOf(int world_rank) const { return member_of.at(world_rank); }

  const GroupKey key;
  /// This process's index.
  const int me;
  const uint64_t id;
  const absl::flat_hash_map<int, int> member_of;
  /// Where kAgree and kGather are counted.
  Arrivals collectives;
  Arrivals gathers;
  /// From which round on each member takes part in none.
  std::vector<int64_t> left;

  /// The collective in which this process is, and the last one.
  int64_t round = -1;
  std::optional<Clock::time_point> round_since;
  /// Counts the collectives and gatherings of all groups.
  int64_t turn = 0;
  /// As ProcessJob::RunningTime: since when a data plane moves host memory.
  std::optional<absl::Duration> issuing_since;
  /// What is gathered; null if nothing is.
  const std::string* gathering = nullptr;
  Clock::time_point gathering_since;
  /// What was gathered last, or is.
  std::string last_gathering;
  int64_t gathering_turn = 0;
};

/// Where a stream's spans go. What it points to outlives it.
struct SpanRow {
  /// Null where nobody wants spans.
  EventSink* sink = nullptr;
  /// The stream's.
  const std::string* name = nullptr;
};

/// While there is one, the stream is at `what`. Costs one comparison with null
/// where nobody wants spans.
/// \threadsafety one thread, the stream's.
class EngineSpan {
 public:
  /// \param what a literal.
  EngineSpan(const SpanRow& row, const char* what) : row_(row), what_(what) {
    Mark(EventKind::kSpanBegin);
  }
  ~EngineSpan() { Mark(EventKind::kSpanEnd); }
  EngineSpan(const EngineSpan&) = delete;
  EngineSpan& operator=(const EngineSpan&) = delete;

 private:
  void Mark(EventKind kind) const {
    if (row_.sink == nullptr) return;
    const std::string subject;
    row_.sink->Write(
        {.kind = kind, .what = what_, .subject = &subject, .where = row_.name});
  }

  const SpanRow row_;
  const char* const what_;
};

/// The job. Its groups, data planes and watch share it.
/// \threadsafety all members may be called from any thread, but for what says
///     that the lock is held.
class ProcessJob {
 public:
  using Clock = JobGroup::Clock;
  using Lock = std::unique_lock<std::mutex>;

  /// \param link outlives the job's last call, not the job.
  /// \param timeout see MpiOptions.
  /// \param channel may be null; outlives the job's End.
  ProcessJob(Link& link, absl::Duration timeout, FailureChannel* channel);
  ProcessJob(const ProcessJob&) = delete;
  ProcessJob& operator=(const ProcessJob&) = delete;
  ~ProcessJob();

  int rank() const { return rank_; }
  int size() const { return size_; }
  absl::Duration timeout() const { return timeout_; }
  /// Returns one of two tags, this and the next, that no message under way has.
  int NextTag();

  /// The rank's context exists, and is poisoned when the job fails, from here
  /// to Leave.
  void Enter(RankContext& context);
  void Leave();

  /// This process's end of a group.
  std::shared_ptr<JobGroup> Connect(const GroupKey& key, int member);
  /// Returns what Connect returned for `key`.
  std::shared_ptr<JobGroup> GroupOf(const GroupKey& key) const;

  /// \name Failure
  /// This process's first failure ends its own rank at once, and is reported to
  /// the coordinator. What the job failed with comes from the coordinator. That
  /// is the failure channel's, or without a channel the process of rank 0.
  /// @{
  /// This rank fails, alone.
  void FailRank(const absl::Status& error);
  /// A group fails with `error`, which names it.
  void FailGroup(const JobGroup& group, const absl::Status& error);
  /// Uses the link no more, and so neither gets nor gives anything: others
  /// still read this process's memory, or may write to it. With the lock held.
  void BreakLink(const absl::Status& why);
  /// Why this rank's work cannot go on; OK while it can.
  absl::Status failure() const;
  /// @}

  /// This rank's function has returned. Returns when those of all ranks have,
  /// with the result of the job, the same on all. After a failure it waits for
  /// the others for the timeout.
  absl::Status End();
  /// Whether all ranks have taken leave, so that the link can be closed.
  bool ended_together() const;

  /// From now on Watch looks after what `plane` has issued, and ends it when
  /// the job fails.
  void AddPlane(std::shared_ptr<const JobGroup> group,
                std::shared_ptr<DataPlane> plane);

  /// Looks for messages in a process in which nobody waits for any, and fails a
  /// rank that computes for ever after the others have finished. Without a
  /// channel, which sees to that where there is one, ends the process if its
  /// rank does not come back in time after a failure.
  void Watch();

  /// \name With the lock held
  /// @{
  Lock TakeLock() { return Lock(mutex_); }
  /// Time in which this process has run, to measure waits by: none passes while
  /// it is stopped, or its machine is.
  absl::Duration RunningTime();
  Link& link() { return link_; }
  bool failed() const { return !failure_.result.ok(); }
  bool lost(int world_rank) const { return lost_[world_rank]; }
  /// Whether `world_rank` has finished, and not because of a failure whose
  /// report is still on its way here.
  bool finished(int world_rank) const {
    return finished_[world_rank] && !awaits_failure_;
  }
  void Wait(Lock& lock, absl::FunctionRef<bool()> done) {
    poller_.Wait(lock, done);
  }
  /// Sends a copy of `message`.
  void Post(int to, const std::string& message);
  /// Keeps a message whose sender cannot wait until it has gone.
  void Adopt(std::string message, LinkRequest request);
  /// This process takes no part in `round` of the group and those after it,
  /// and reads nothing of the others for them any more.
  void LeaveRounds(JobGroup& group, int64_t round);
  /// The group's `round` begins here.
  void BeginRound(JobGroup& group, int64_t round);
  /// The group gathers `what`, which lives until `gathering` is set back.
  void BeginGathering(JobGroup& group, const std::string& what);
  /// Keeps the first error of the link.
  void NoteLinkError(const absl::Status& error);
  const absl::Status& link_error() const { return link_error_; }
  /// @}

  /// What this rank does, and its device, for FailureChannel::SetActivity.
  /// Takes the lock only if it is free: a call of the link may not return.
  /// Reports that to the channel once it has lasted for the timeout.
  std::string Activity();

 private:
  struct Posted {
    std::string message;
    LinkRequest request;
  };

  /// Without the lock.
  void WatchPlanes();
  /// Of the rank's thread. With the lock held.
  std::string ActivityLocked() const;

  // With the lock held.
  bool TakeMessages();
  void Deliver(int from, std::string& message);
  void DeliverToGroup(int from, const MessageHeader& header,
                      std::string& message);
  /// Ends this rank's work, and reports that to the coordinator; not the second
  /// time.
  void FailLocked(const FailureNotice& notice);
  void EndRank(const FailureNotice& notice);
  /// Takes in what the coordinator has decided.
  void OnDecision(const FailureNotice& notice);
  /// Without a channel, on rank 0: `notice` is the job's failure, if it is the
  /// first.
  void Decide(const FailureNotice& notice);
  void TestPosted();

  /// Fails this rank if it keeps ranks waiting that have finished: it has been
  /// in no collective since, for the timeout. Without the lock.
  void CheckIdle();

  /// Called by the channel, which must not wait for the lock.
  void Told(const FailureNotice& notice);
  /// Takes in what the channel has told. With the lock held.
  void TakeTold();
  /// Whether the link has kept the lock for the timeout, without a call that
  /// returned. On the channel's thread alone.
  bool IsBlocked();

  Link& link_;
  const int rank_;
  const int size_;
  const absl::Duration timeout_;
  FailureChannel* const channel_;

  mutable std::mutex mutex_;
  Poller poller_;
  RankContext* context_ = nullptr;
  std::map<uint64_t, std::shared_ptr<JobGroup>> groups_;
  /// What came, and from whom, for groups that this process has not asked
  /// for yet.
  std::map<uint64_t, std::vector<std::pair<int, std::string>>> unclaimed_;
  std::vector<std::unique_ptr<Posted>> posted_;
  std::string incoming_;
  std::atomic<uint32_t> tags_taken_{0};
  int64_t turns_ = 0;
  /// One of its groups, on which data move.
  struct Moved {
    std::shared_ptr<const JobGroup> group;
    std::shared_ptr<DataPlane> plane;
  };
  std::vector<Moved> planes_;
  /// What has become of each rank.
  std::vector<bool> lost_;
  std::vector<bool> finished_;

  /// OK while there is none; this process's own until the coordinator's is
  /// known.
  JobFailure failure_;
  bool is_decided_ = false;
  /// A rank has finished because of a failure that is not known here yet.
  bool awaits_failure_ = false;
  /// A rank has left without waiting for all others.
  bool is_given_up_ = false;
  WatchClock clock_;
  std::optional<absl::Duration> failed_at_;  ///< As RunningTime.
  absl::Status link_error_;
  bool function_returned_ = false;
  /// As RunningTime: since when another has finished, and this rank has begun
  /// no collective; with turns_ as it was then.
  std::optional<absl::Duration> idle_since_;
  int64_t idle_turns_ = 0;
  bool ended_together_ = false;

  /// Counts what shows that the lock changes hands.
  std::atomic<int64_t> progress_{0};
  std::atomic<bool> has_told_{false};
  /// Guards `told_` alone: nobody calls the link with it.
  std::mutex told_mutex_;
  std::vector<FailureNotice> told_;

  // On the channel's thread alone.
  std::string last_activity_;
  int64_t seen_progress_ = -1;
  Clock::time_point blocked_since_;
  bool has_reported_block_ = false;
};

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_COMM_MPI_PROCESS_JOB_H_
