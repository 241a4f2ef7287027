// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_MPI_PROCESS_JOB_H_
#define CROSSHATCH_COMM_MPI_PROCESS_JOB_H_

/// \file
/// ProcessJob: one process's part of a job of processes.

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
#include "absl/types/span.h"
#include "crosshatch/base/event_sink.h"
#include "crosshatch/comm/data_plane.h"
#include "crosshatch/comm/group_key.h"
#include "crosshatch/comm/idle_watch.h"
#include "crosshatch/comm/job_failure.h"
#include "crosshatch/comm/mpi/control_message.h"
#include "crosshatch/comm/mpi/link.h"
#include "crosshatch/comm/mpi/poller.h"
#include "crosshatch/comm/watch_clock.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch::internal {

/// The state of one group in this process. Guarded by the job's lock, except
/// the messages of a round to which all have come: they do not change until the
/// round is closed.
struct JobGroup {
  using Clock = std::chrono::steady_clock;

  JobGroup(const GroupKey& key, int me, absl::Duration timeout);

  int size() const { return key.size(); }
  /// Returns the index of `world_rank`, which is a member.
  int MemberOf(int world_rank) const { return member_of.at(world_rank); }

  const GroupKey key;
  /// This process's index.
  const int me;
  /// The longest time that a member may keep the others waiting.
  const absl::Duration timeout;
  const uint64_t id;
  const absl::flat_hash_map<int, int> member_of;
  /// The rounds of one kind. One thread at a time runs them: agreements the
  /// stream's, gathers the rank's.
  struct Lane {
    Lane(MessageKind lane_kind, size_t members)
        : kind(lane_kind),
          arrivals(static_cast<int>(members)),
          messages(members),
          fingerprints(members),
          pointers(members) {}

    const MessageKind kind;
    Arrivals arrivals;
    /// The round that this process is in, or the last one.
    int64_t round = -1;
    /// When this process entered it; empty after it has left.
    std::optional<Clock::time_point> since;
    /// Counts the rounds of all groups.
    int64_t turn = 0;

    // For the thread that runs the rounds only.
    /// Whether the messages of the last round are still used.
    bool is_open = false;
    /// By member: the messages of the next round, and what came in the last.
    std::vector<std::string> messages;
    std::vector<Fingerprint> fingerprints;
    std::vector<const Fingerprint*> pointers;
  };
  Lane agreements;
  Lane gathers;
  /// The first agreement that each member skips.
  std::vector<int64_t> left;

  /// When a data plane began to move host memory, as ProcessJob::RunningTime.
  std::optional<absl::Duration> issuing_since;
};

/// The destination of a stream's spans. The pointers must outlive it.
struct SpanRow {
  /// Null if no spans are wanted.
  EventSink* sink = nullptr;
  /// The stream's.
  const std::string* name = nullptr;
};

/// A span of a stream: `what` lasts as long as the object. Costs one comparison
/// with null if no spans are wanted.
/// \threadsafety one thread, the stream's.
class StreamSpan {
 public:
  /// \param what a literal.
  StreamSpan(const SpanRow& row, const char* what) : row_(row), what_(what) {
    Mark(EventKind::kSpanBegin);
  }
  ~StreamSpan() { Mark(EventKind::kSpanEnd); }
  StreamSpan(const StreamSpan&) = delete;
  StreamSpan& operator=(const StreamSpan&) = delete;

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

/// A job, shared by its groups, data planes and watchdog.
/// \threadsafety any thread, except where the lock has to be held.
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
  /// Returns a tag that no message in flight has, out of two.
  int NextTag();

  /// Poisons `context` when the job fails, from now until Leave.
  void Enter(RankContext& context);
  void Leave();

  /// Returns this process's end of a group.
  std::shared_ptr<JobGroup> Connect(const GroupKey& key, int member,
                                    absl::Duration timeout);
  /// Returns what Connect returned for `key`.
  std::shared_ptr<JobGroup> GroupOf(const GroupKey& key) const;

  /// \name Failure
  /// This process's first failure ends its own rank at once, and is reported to
  /// the coordinator. What the job failed with comes from the coordinator. That
  /// is the failure channel's, or without a channel the process of rank 0.
  /// @{
  /// Fails this rank alone.
  void FailRank(const absl::Status& error);
  void FailGroup(const JobGroup& group, const absl::Status& error);
  /// Stops using the link, because peers may still read this process's memory
  /// or write to it. With the lock held.
  void BreakLink(const absl::Status& why);
  /// Returns why this rank's work cannot continue, or OK.
  absl::Status failure() const;
  /// @}

  /// Ends this rank, whose function has returned. Waits until the functions of
  /// all ranks have returned, after a failure for the timeout at most.
  /// \returns the result of the job. It is the same on all ranks that learn
  ///     within the timeout what the job failed with. Others return their own
  ///     failure, or that another rank has failed.
  absl::Status End();
  /// Returns whether all ranks have ended, so that the link can be closed.
  bool ended_together() const;

  /// Polls `plane` from now on (Watch), and aborts it when the job fails.
  void AddPlane(std::shared_ptr<const JobGroup> group,
                std::shared_ptr<DataPlane> plane);

  /// Polls for messages if no thread waits. Fails a rank that computes
  /// indefinitely after the others have finished. Without a channel, ends the
  /// process if its rank does not return in time after a failure.
  void Watch();

  /// \name With the lock held
  /// @{
  Lock TakeLock() { return Lock(mutex_); }
  /// Returns how long this process has run, to measure waits. While it or its
  /// machine is stopped, no time passes.
  absl::Duration RunningTime();
  Link& link() { return link_; }
  bool failed() const { return failure_.has_value(); }
  bool lost(int world_rank) const { return lost_[world_rank]; }
  /// Returns whether `world_rank` has finished. Until the report of a known
  /// failure has come, no rank counts as finished.
  bool finished(int world_rank) const {
    return finished_[world_rank] && !awaits_failure_;
  }
  void Wait(Lock& lock, absl::FunctionRef<bool()> done) {
    poller_.Wait(lock, done);
  }
  /// Sends `message`, which gets the memory of an earlier one, and does not
  /// wait until it has left.
  void Post(int to, std::string& message);
  /// Informs the group that this process skips agreement `round` and later
  /// ones, and does not read its peers' memory for them.
  void LeaveRounds(JobGroup& group, int64_t round);
  void BeginRound(JobGroup::Lane& lane);
  /// Records the first error of the link, which ends this rank.
  void RecordLinkError(const absl::Status& error);
  const absl::Status& link_error() const { return link_error_; }
  /// @}

  /// Returns what this rank and its device do, for FailureChannel::SetActivity.
  /// Takes the lock only if it is free, because a call of the link may not
  /// return. If one has lasted for the timeout, reports that to the channel.
  std::string Activity();

 private:
  struct Posted {
    std::string message;
    LinkRequest request;
  };

  /// Without the lock.
  void WatchPlanes();
  /// Returns what the rank's thread does. With the lock held.
  std::string ActivityLocked() const;

  // With the lock held.
  bool TakeMessages();
  void Deliver(int from, std::string& message);
  void DeliverToGroup(int from, const MessageHeader& header,
                      std::string& message);
  /// Ends this rank's work and reports that to the coordinator. Does nothing if
  /// the job has failed already.
  void FailLocked(const FailureNotice& notice);
  void EndRank(const FailureNotice& notice);
  /// Adopts the failure that the coordinator has decided on.
  void OnDecision(const FailureNotice& notice);
  /// Makes `notice` the job's failure if it is the first, and sends it to all.
  /// Called on rank 0 of a job without a channel.
  void Decide(const FailureNotice& notice);
  void PostToOthers(absl::Span<const int> ranks, const std::string& message);
  void TestPosted();

  /// Fails this rank if others have finished and it has been in no collective
  /// for the timeout. Without the lock.
  void CheckIdle();

  /// Queues `notice`. Called by the channel, which must not wait for the lock.
  void OnNotice(const FailureNotice& notice);
  /// Handles the queued notices. With the lock held.
  void TakeNotices();
  /// Returns whether one call of the link has kept the lock for the timeout.
  /// Called on the channel's thread alone.
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
  /// Messages and their senders for groups that do not exist here yet.
  std::map<uint64_t, std::vector<std::pair<int, std::string>>> unclaimed_;
  std::vector<std::unique_ptr<Posted>> posted_;
  std::vector<std::unique_ptr<Posted>> unused_;
  std::string incoming_;
  std::atomic<uint32_t> tags_taken_{0};
  int64_t turns_ = 0;
  /// One of its groups, on which data move.
  struct Moved {
    std::shared_ptr<const JobGroup> group;
    std::shared_ptr<DataPlane> plane;
  };
  std::vector<Moved> planes_;
  /// By rank.
  std::vector<bool> lost_;
  std::vector<bool> finished_;

  /// This process's own until the coordinator's is known.
  std::optional<FailureNotice> failure_;
  bool is_decided_ = false;
  /// A rank has finished because of a failure that is not known here yet.
  bool awaits_failure_ = false;
  /// A rank has left without waiting for all others.
  bool is_given_up_ = false;
  WatchClock clock_;
  std::optional<absl::Duration> failed_at_;  ///< As RunningTime.
  absl::Status link_error_;
  bool function_returned_ = false;
  IdleWatch idle_;
  bool ended_together_ = false;

  /// Increases whenever a thread that waits for messages has the lock.
  std::atomic<int64_t> progress_{0};
  std::atomic<bool> has_notices_{false};
  /// Guards `notices_` alone. No call of the link is made with it.
  std::mutex notices_mutex_;
  std::vector<FailureNotice> notices_;

  // On the channel's thread alone.
  std::string last_activity_;
  int64_t seen_progress_ = -1;
  Clock::time_point blocked_since_;
  bool has_reported_block_ = false;
};

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_COMM_MPI_PROCESS_JOB_H_
