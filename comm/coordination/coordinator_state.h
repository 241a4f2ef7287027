// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_COORDINATION_COORDINATOR_STATE_H_
#define CROSSHATCH_COMM_COORDINATION_COORDINATOR_STATE_H_

/// \file
/// What the coordinator of a job knows and decides: who has come, who is
/// alive, and the one error that the job ends with.
///
///   gathering --all ranks are there--> running --all said goodbye--> dismissed
///       |                                 |
///       | a wrong start, too late         | a rank died or reports an error
///       v                                 v
///     failed <--all alive answered------ asking
///
/// In `asking`, for a moment, all ranks are asked what they do. That tells a
/// rank that died from those that failed because of it: whoever does not answer
/// because its stream is broken is the cause, whatever came first. Of several
/// that died each is named; who dies later, or is cut off, is told to those
/// that are left.

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "crosshatch/comm/coordination/gather_state.h"
#include "crosshatch/comm/coordination/messages.pb.h"
#include "crosshatch/comm/job_failure.h"

namespace crosshatch::coordination {

/// How long one waits for the other.
struct CoordinationTimes {
  /// For all ranks to come, from the coordinator's start.
  absl::Duration start = absl::Minutes(5);
  /// Silence of a rank, or of the coordinator, that counts as its death. A
  /// process that ends is noticed at once, by the end of its connection.
  absl::Duration heartbeat = absl::Seconds(30);

  /// Between two signs of life.
  absl::Duration interval() const;
  /// For the answers to what ranks are doing when one has failed.
  absl::Duration query() const;
};

/// "rank 2 (process 4711 on host a17)".
std::string Describe(const Member& member);

/// A pure state machine: no clock, no lock, no socket. A peer is a connection
/// of a process; those that are none of the job's never get to be a rank.
class CoordinatorState {
 public:
  using Peer = int64_t;
  struct Outgoing {
    Peer peer;
    ServerMessage message;
  };
  /// What is to be done after a transition, the messages first.
  struct Actions {
    std::vector<Outgoing> send;
    std::vector<Peer> close;
  };

  /// \param self rank 0, in whose process the coordinator is: the others must
  ///     agree with its size and program. It registers as the others do.
  CoordinatorState(Member self, std::string token, CoordinationTimes times,
                   absl::Time now);

  Actions OnConnected(Peer peer, absl::Time now);
  Actions OnMessage(Peer peer, const ClientMessage& message, absl::Time now);
  /// The stream is at its end, from whatever side.
  Actions OnBroken(Peer peer, absl::Time now);
  /// To be called every CoordinationTimes::interval() or oftener.
  Actions OnTick(absl::Time now);

  /// What the job failed with, once it is decided and told to all.
  const std::optional<FailureNotice>& failure() const { return failure_; }
  /// Whether all have said goodbye, or the job has failed.
  bool is_over() const;
  /// Whether no process of the job is there that lives, nor is to come and be
  /// told that the job has failed without it.
  bool is_deserted() const;

 private:
  enum class Phase : uint8_t {
    kGathering,
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
    bool said_goodbye = false;
    /// Whether it has answered an `ask` since this process was last stopped.
    bool answered_since_wake = true;
    /// Dead, or has left. One that was stopped may still be connected, and is
    /// told of its death should it wake.
    bool is_gone = false;
    bool is_connected = true;
  };

  bool Lives(int rank) const;
  /// At every event: notices that this process itself was stopped since the
  /// last one.
  void Wake(absl::Time now);
  void Send(Peer peer, ServerMessage message, Actions& actions) const;
  void SendToAll(const ServerMessage& message, Actions& actions) const;
  void Send(const GatherState::Answers& answers, Actions& actions) const;
  void Refuse(Peer peer, const std::string& why, Actions& actions);
  void Register(Peer peer, const Registration& registration, absl::Time now,
                Actions& actions);
  void OnMessageOf(Rank& rank, const ClientMessage& message, absl::Time now,
                   Actions& actions);
  void OnDeath(Rank& rank, const std::string& how, absl::Time now,
               Actions& actions);
  void QueryAll(FailureNotice cause, absl::Time now, Actions& actions);
  void AnnounceIfKnown(absl::Time now, Actions& actions);
  void Announce(FailureNotice failure, Actions& actions);
  void FailStart(const std::string& why, Actions& actions);
  void RefuseHeld(Actions& actions);
  void AnnounceToStranger(Peer peer, Actions& actions);
  std::string Activities(absl::Time now) const;
  std::string LateStart(absl::Time now) const;

  const Member self_;
  const std::string token_;
  const CoordinationTimes times_;
  const absl::Time begin_;

  Phase phase_ = Phase::kGathering;
  GatherState gathers_;
  std::map<int, Rank> ranks_;
  std::map<Peer, int> rank_of_;
  std::map<Peer, absl::Time> strangers_;  // Since when.
  /// Without the token, while ranks are missing: they may be those. A stranger
  /// cannot fail the job; if it fails for want of them, they need not say more.
  std::set<Peer> held_;
  std::set<Peer>
      announced_to_;      // Connections that got the failure, and no rank.
  int came_ = 0;          // Processes of the job, also when it had failed.
  bool is_late_ = false;  // Whoever has not come is not waited for any more.
  int refused_ = 0;
  // They count ranks_, so that no event needs a look at all of them.
  int num_living_ = 0;
  int num_goodbyes_ = 0;
  absl::Time last_event_;
  absl::Time woke_at_ = absl::InfinitePast();
  absl::Duration slept_;
  bool has_woken_ = false;  // All are to be asked.
  absl::Time next_heartbeat_;

  // While asking.
  FailureNotice cause_;
  absl::Time query_until_;
  int num_unanswered_ = 0;  // That live.

  std::optional<FailureNotice> failure_;
  /// Who else is lost or cut off, to be told with the next tick.
  FailureNotice losses_;
};

}  // namespace crosshatch::coordination

#endif  // CROSSHATCH_COMM_COORDINATION_COORDINATOR_STATE_H_
