// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_COORDINATION_COORDINATOR_STATE_H_
#define CROSSHATCH_COMM_COORDINATION_COORDINATOR_STATE_H_

/// \file
/// The state of a job's coordinator: which ranks have joined, which are alive,
/// and the one error that the job ends with.
///
///   joining --all ranks are there--> running --all said goodbye--> dismissed
///      |                                |
///      | a wrong start, too late        | a rank died or reports an error
///      v                                v
///    failed <--all alive answered---- querying
///
/// In `querying`, for a moment, all ranks are queried for what they do. That
/// separates a rank that died from those that failed because of it: a rank that
/// does not answer because its stream is broken is the cause, whatever was
/// reported first. If several died, each is named. Later losses are reported to
/// the remaining ranks.

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "crosshatch/comm/coordination/messages.pb.h"
#include "crosshatch/comm/job_failure.h"

namespace crosshatch::coordination {

/// How long ranks and coordinator wait for one another.
struct CoordinationTimes {
  /// For all ranks to join, from the coordinator's start.
  absl::Duration start = absl::Minutes(5);
  /// How long a rank or the coordinator may be silent before it counts as dead.
  /// A process that ends is noticed at once, by the end of its connection.
  absl::Duration heartbeat = absl::Seconds(30);

  /// Returns the time between two heartbeats.
  absl::Duration interval() const;
  /// Returns how long the coordinator waits for the answers to a query.
  absl::Duration query() const;
};

/// Returns "rank 2 (process 4711 on host a17)".
std::string Describe(const Member& member);

/// A pure state machine: no clock, no lock, no socket. A peer is a connection;
/// peers are numbered in the order in which they connect. Times are of a clock
/// that does not advance while the coordinator's process is stopped.
///
/// A stranger is a peer that has not registered as a rank. At most
/// kMostStrangers are connected at a time, each for kLongestSilence at most, so
/// that strangers cannot use up the process's file descriptors.
class CoordinatorState {
 public:
  using Peer = int64_t;
  struct Outgoing {
    std::vector<Peer> to;
    ServerMessage message;
  };
  /// What to do after a transition, the messages first.
  struct Actions {
    std::vector<Outgoing> send;
    std::vector<Peer> close;  ///< Once their messages have been sent.
    std::vector<Peer> drop;   ///< At once.
  };

  static constexpr size_t kMostStrangers = 128;
  static constexpr absl::Duration kLongestSilence = absl::Seconds(10);

  /// \param self rank 0, whose process has the coordinator. The others must
  ///     have its size and program. It registers as the others do.
  CoordinatorState(Member self, std::string token, CoordinationTimes times,
                   absl::Time now);

  /// Handles a new connection.
  Actions OnConnect(Peer peer, absl::Time now);
  /// Handles a message. The first one of a peer must be its registration.
  Actions OnMessage(Peer peer, const ClientMessage& message, absl::Time now);
  /// Handles the end of a connection.
  Actions OnBroken(Peer peer, absl::Time now);
  /// Called at least every CoordinationTimes::interval().
  Actions OnTick(absl::Time now);

  /// Returns the job's failure, once it is decided and announced.
  const std::optional<FailureNotice>& failure() const { return failure_; }
  /// Returns whether all ranks have said goodbye, or the job has failed.
  bool is_over() const;
  /// Returns whether no rank is connected, and none may still come that has to
  /// receive the job's failure.
  bool is_deserted() const;

 private:
  enum class Phase : uint8_t {
    kJoining,
    kRunning,
    kQuerying,
    kFailed,
    kDismissed,
  };
  struct Rank {
    Member member;
    Peer peer = -1;
    absl::Time last_received;
    std::string activity;
    absl::Time activity_at;
    bool answered = false;
    bool sent_goodbye = false;
    /// Whether it is dead or has left. A stopped process may still be
    /// connected, and receives the failure if it resumes.
    bool is_gone = false;
    bool is_connected = true;
  };

  void SendToAll(ServerMessage message, Actions& actions) const;
  void Start(Actions& actions);
  void Refuse(Peer peer, const std::string& why, Actions& actions);
  void Register(Peer peer, const Registration& registration, absl::Time now,
                Actions& actions);
  void OnMessageOf(Rank& rank, const ClientMessage& message, absl::Time now,
                   Actions& actions);
  void OnGather(int rank, const Gather& gather, absl::Time now,
                Actions& actions);
  void OnDeath(Rank& rank, const std::string& how, absl::Time now,
               Actions& actions);
  void QueryAll(FailureNotice cause, absl::Time now, Actions& actions);
  void AnnounceIfKnown(absl::Time now, Actions& actions);
  void Announce(FailureNotice failure, Actions& actions);
  std::string Activities(absl::Time now) const;
  std::string LateStart(absl::Time now) const;

  const Member self_;
  const std::string token_;
  const CoordinationTimes times_;
  const absl::Time begin_;

  Phase phase_ = Phase::kJoining;
  std::map<int, Rank> ranks_;
  std::map<Peer, int> rank_of_;
  std::map<Peer, absl::Time> strangers_;  ///< With the time of connection.
  /// Processes of the job, including those that came after its failure.
  int came_ = 0;
  bool is_late_ = false;  // Missing ranks are not waited for any more.
  int refused_ = 0;
  int num_goodbyes_ = 0;
  absl::Time next_heartbeat_;

  /// \name The Gather under way
  /// @{
  std::string gather_name_;
  std::map<int, std::string> blobs_;  // By rank.
  absl::Duration gather_timeout_;
  absl::Time gather_until_;
  /// @}

  // While querying.
  FailureNotice cause_;
  absl::Time query_until_;
  int num_unanswered_ = 0;  // Of living ranks.

  std::optional<FailureNotice> failure_;
  /// Other losses, which the next tick announces.
  FailureNotice losses_;
};

}  // namespace crosshatch::coordination

#endif  // CROSSHATCH_COMM_COORDINATION_COORDINATOR_STATE_H_
