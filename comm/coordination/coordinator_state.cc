// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/coordination/coordinator_state.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/comm/coordination/failure_message.h"
#include "crosshatch/comm/group_key.h"
#include "crosshatch/comm/watch_clock.h"

namespace crosshatch::coordination {
namespace {

/// The most ranks in a failure's text.
constexpr int kMostActivities = 32;
/// The most ranks of a machine that each of them receives.
constexpr int kMostNeighbours = 64;
/// Bounds all blobs of a Gather, because messages have at most 4 MiB.
constexpr size_t kMostGatheredBytes = size_t{3} << 20;

ServerMessage Message(Nothing* (ServerMessage::*mutable_kind)()) {
  ServerMessage message;
  (message.*mutable_kind)();
  return message;
}

/// Returns whether the tokens are equal. Takes the same time wherever they
/// differ, so that a stranger cannot find the token piece by piece.
bool SameToken(const std::string& a, const std::string& b) {
  unsigned char differs = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    differs |= static_cast<unsigned char>(a[i] ^ b[i]);
  }
  return differs == 0;
}

std::string ProcessOf(const Member& member) {
  return absl::StrCat("process ", member.pid(), " on host ", member.host());
}

void AddLoss(const FailureNotice& loss, FailureNotice& losses) {
  if (losses.world_ranks.empty()) {
    losses = loss;
    return;
  }
  const int rank = loss.world_ranks.at(0);
  losses.world_ranks.push_back(rank);
  const auto named = static_cast<int>(losses.world_ranks.size());
  if (named > kMostActivities + 1) return;
  losses.error = absl::Status(
      losses.error.code(),
      absl::StrCat(std::string(losses.error.message()), "; ",
                   named > kMostActivities
                       ? "and more"
                       : absl::StrCat("rank ", rank, ": ",
                                      std::string(loss.error.message()))));
}

}  // namespace

absl::Duration CoordinationTimes::interval() const { return heartbeat / 8; }

absl::Duration CoordinationTimes::query() const {
  return std::min(heartbeat / 4, absl::Seconds(2));
}

std::string Describe(const Member& member) {
  return absl::StrCat("rank ", member.rank(), " (", ProcessOf(member), ")");
}

CoordinatorState::CoordinatorState(Member self, std::string token,
                                   CoordinationTimes times, absl::Time now)
    : self_(std::move(self)),
      token_(std::move(token)),
      times_(times),
      begin_(now),
      next_heartbeat_(now) {}

bool CoordinatorState::is_over() const {
  return phase_ == Phase::kFailed || phase_ == Phase::kDismissed;
}

bool CoordinatorState::is_deserted() const {
  if (came_ < self_.size() && !is_late_) return false;
  return std::all_of(ranks_.begin(), ranks_.end(), [](const auto& each) {
    const auto& [index, rank] = each;
    // Rank 0 is in this process and receives the failure directly.
    return rank.is_gone || (index == 0 && rank.sent_goodbye);
  });
}

void CoordinatorState::SendToAll(ServerMessage message,
                                 Actions& actions) const {
  std::vector<Peer> all;
  for (const auto& [index, rank] : ranks_) {
    if (rank.is_connected) all.push_back(rank.peer);
  }
  actions.send.push_back({std::move(all), std::move(message)});
}

CoordinatorState::Actions CoordinatorState::OnConnect(Peer peer,
                                                      absl::Time now) {
  Actions actions;
  if (strangers_.size() == kMostStrangers) {
    actions.drop.push_back(strangers_.begin()->first);
    strangers_.erase(strangers_.begin());
  }
  strangers_[peer] = now;
  return actions;
}

void CoordinatorState::Refuse(Peer peer, const std::string& why,
                              Actions& actions) {
  ++refused_;
  ServerMessage message;
  message.set_refused(why);
  actions.send.push_back({{peer}, std::move(message)});
  actions.close.push_back(peer);
}

CoordinatorState::Actions CoordinatorState::OnMessage(
    Peer peer, const ClientMessage& message, absl::Time now) {
  Actions actions;
  const auto found = rank_of_.find(peer);
  if (found == rank_of_.end()) {
    if (message.has_registration()) {
      Register(peer, message.registration(), now, actions);
    } else {
      Refuse(peer, "the first message must be the registration", actions);
    }
    return actions;
  }
  Rank& rank = ranks_.at(found->second);
  if (rank.is_gone) return actions;
  rank.last_received = now;
  OnMessageOf(rank, message, now, actions);
  return actions;
}

void CoordinatorState::Register(Peer peer, const Registration& registration,
                                absl::Time now, Actions& actions) {
  if (!SameToken(registration.token(), token_)) {
    Refuse(peer,
           "the token is not this job's: give all ranks the same "
           "CROSSHATCH_JOB_TOKEN and CROSSHATCH_JOB_ID",
           actions);
    return;
  }
  if (phase_ != Phase::kJoining && phase_ != Phase::kFailed) {
    Refuse(peer,
           absl::StrCat("the job of ", Describe(self_),
                        " has all its ranks: give another job another "
                        "MASTER_PORT"),
           actions);
    return;
  }
  const Member& member = registration.member();
  ++came_;
  const auto twin = ranks_.find(member.rank());
  std::string wrong;
  if (!member.wrong().empty()) {
    wrong =
        absl::StrCat(member.rank() < 0 ? ProcessOf(member) : Describe(member),
                     ": ", member.wrong());
  } else if (member.size() != self_.size()) {
    wrong =
        absl::StrCat(Describe(member), " was started for a world of ",
                     member.size(), " ranks, ", Describe(self_), " for ",
                     self_.size(), ": start all ranks with the same number");
  } else if (member.rank() < 0 || member.rank() >= self_.size()) {
    wrong =
        absl::StrCat(Describe(member), " is outside of the world of ",
                     self_.size(), " ranks, which are 0 to ", self_.size() - 1);
  } else if (twin != ranks_.end()) {
    wrong = absl::StrCat("two processes are rank ", member.rank(), ": ",
                         ProcessOf(twin->second.member), ", and ",
                         ProcessOf(member), ": give each rank to one process");
  } else if (member.program() != self_.program()) {
    wrong = absl::StrCat(Describe(member), " runs another program (",
                         member.program(), ") than ", Describe(self_), " (",
                         self_.program(), "): start the same build on all");
  }
  if (!wrong.empty() || phase_ == Phase::kFailed) {
    if (phase_ != Phase::kFailed) {
      Announce(
          {.of_group = true, .error = absl::FailedPreconditionError(wrong)},
          actions);
    }
    ServerMessage message;
    *message.mutable_failure() = ToMessage(*failure_);
    actions.send.push_back({{peer}, std::move(message)});
    actions.close.push_back(peer);
    return;
  }
  ranks_[member.rank()] = {
      .member = member, .peer = peer, .last_received = now};
  rank_of_[peer] = member.rank();
  strangers_.erase(peer);
  actions.send.push_back({{peer}, Message(&ServerMessage::mutable_heartbeat)});
  if (static_cast<int>(ranks_.size()) == self_.size()) Start(actions);
}

void CoordinatorState::Start(Actions& actions) {
  phase_ = Phase::kRunning;
  std::map<std::string, Outgoing> by_machine;
  for (const auto& [index, rank] : ranks_) {
    Outgoing& out = by_machine[rank.member.machine()];
    out.to.push_back(rank.peer);
    Started& started = *out.message.mutable_started();
    if (started.neighbours_size() == kMostNeighbours) continue;
    Neighbour& neighbour = *started.add_neighbours();
    neighbour.set_rank(index);
    neighbour.set_pid(rank.member.pid());
  }
  for (auto& [machine, out] : by_machine) {
    *out.message.mutable_started()->mutable_rank_0() = self_;
    actions.send.push_back(std::move(out));
  }
}

void CoordinatorState::OnMessageOf(Rank& rank, const ClientMessage& message,
                                   absl::Time now, Actions& actions) {
  const int index = rank.member.rank();
  switch (message.kind_case()) {
    case ClientMessage::kHeartbeat:
      rank.activity = message.heartbeat();
      rank.activity_at = now;
      break;
    case ClientMessage::kGather:
      OnGather(index, message.gather(), now, actions);
      break;
    case ClientMessage::kFailure:
      if (phase_ == Phase::kJoining) {
        Announce(ToNotice(message.failure()), actions);
      } else if (phase_ == Phase::kRunning) {
        QueryAll(ToNotice(message.failure()), now, actions);
      } else if (message.failure().cut_off()) {
        AddLoss(ToNotice(message.failure()), losses_);
      }
      break;
    case ClientMessage::kActivity:
      rank.activity = message.activity();
      rank.activity_at = now;
      if (phase_ == Phase::kQuerying && !std::exchange(rank.answered, true)) {
        --num_unanswered_;
      }
      AnnounceIfKnown(now, actions);
      break;
    case ClientMessage::kGoodbye: {
      if (!std::exchange(rank.sent_goodbye, true)) ++num_goodbyes_;
      const bool over = num_goodbyes_ == self_.size();
      if (phase_ == Phase::kFailed) {
        actions.send.push_back(
            {{rank.peer}, Message(&ServerMessage::mutable_dismissed)});
      } else if (phase_ == Phase::kRunning && over) {
        phase_ = Phase::kDismissed;
        SendToAll(Message(&ServerMessage::mutable_dismissed), actions);
      }
      break;
    }
    case ClientMessage::kLost: {
      if (phase_ == Phase::kFailed) break;
      Announce(
          {.world_ranks = {0},
           .process_lost = true,
           .error = absl::UnavailableError(absl::StrCat(
               ProcessOf(self_), ", which coordinates the job, was stopped or ",
               "cut off: ", Describe(rank.member), " ", message.lost()))},
          actions);
      break;
    }
    case ClientMessage::kRegistration:
    case ClientMessage::KIND_NOT_SET:
      break;  // Only shows that the rank is alive.
  }
}

void CoordinatorState::OnGather(int rank, const Gather& gather, absl::Time now,
                                Actions& actions) {
  if (phase_ != Phase::kRunning) return;  // The failure ends the rank's wait.
  const auto fail = [&](absl::Status error) {
    QueryAll({.of_group = true, .error = std::move(error)}, now, actions);
  };
  if (blobs_.contains(rank)) {
    return fail(absl::FailedPreconditionError(
        absl::StrCat("rank ", rank, " gathers '", gather.name(),
                     "' while it waits for the others' '", gather_name_, "'")));
  }
  if (blobs_.empty()) {
    gather_name_ = gather.name();
    gather_timeout_ = absl::Milliseconds(gather.timeout_ms());
    gather_until_ = now + gather_timeout_;
  } else if (gather.name() != gather_name_) {
    return fail(absl::FailedPreconditionError(
        absl::StrCat("rank ", rank, " gathers '", gather.name(), "' and rank ",
                     blobs_.begin()->first, " '", gather_name_, "'")));
  }
  blobs_[rank] = gather.blob();
  if (static_cast<int>(blobs_.size()) < self_.size()) return;
  size_t bytes = 0;
  ServerMessage message;
  for (auto& [each, blob] : std::exchange(blobs_, {})) {
    bytes += blob.size();
    message.mutable_gathered()->add_blobs(std::move(blob));
  }
  if (bytes > kMostGatheredBytes) {
    return fail(absl::ResourceExhaustedError(
        absl::StrCat("'", gather_name_, "' has ", bytes,
                     " bytes of all ranks; the most is ", kMostGatheredBytes)));
  }
  SendToAll(std::move(message), actions);
}

CoordinatorState::Actions CoordinatorState::OnBroken(Peer peer,
                                                     absl::Time now) {
  Actions actions;
  strangers_.erase(peer);
  const auto found = rank_of_.find(peer);
  if (found == rank_of_.end()) return actions;
  Rank& rank = ranks_.at(found->second);
  rank_of_.erase(found);
  rank.is_connected = false;
  if (rank.is_gone) return actions;
  OnDeath(rank,
          " died: its connection ended without a goodbye, as when a process is "
          "killed, aborts or exits early",
          now, actions);
  return actions;
}

void CoordinatorState::OnDeath(Rank& rank, const std::string& how,
                               absl::Time now, Actions& actions) {
  rank.is_gone = true;
  FailureNotice death = {
      .world_ranks = {rank.member.rank()},
      .process_lost = true,
      .error = absl::UnavailableError(ProcessOf(rank.member) + how)};
  switch (phase_) {
    case Phase::kJoining:
      Announce(std::move(death), actions);
      break;
    case Phase::kRunning:
      QueryAll(std::move(death), now, actions);
      break;
    case Phase::kQuerying:
      if (!rank.answered) --num_unanswered_;
      if (!cause_.process_lost) {
        if (cause_.cut_off) AddLoss(cause_, losses_);
        cause_ = {};
      }
      AddLoss(death, cause_);
      AnnounceIfKnown(now, actions);
      break;
    case Phase::kFailed:
      if (!rank.sent_goodbye) AddLoss(death, losses_);
      break;
    case Phase::kDismissed:
      break;  // The rank has left.
  }
}

void CoordinatorState::QueryAll(FailureNotice cause, absl::Time now,
                                Actions& actions) {
  phase_ = Phase::kQuerying;
  cause_ = std::move(cause);
  query_until_ = now + times_.query();
  num_unanswered_ = 0;
  for (auto& [index, rank] : ranks_) {
    rank.answered = false;
    if (!rank.is_gone) ++num_unanswered_;
  }
  SendToAll(Message(&ServerMessage::mutable_query), actions);
  AnnounceIfKnown(now, actions);
}

void CoordinatorState::AnnounceIfKnown(absl::Time now, Actions& actions) {
  if (phase_ != Phase::kQuerying) return;
  if (num_unanswered_ > 0 && now < query_until_) return;
  FailureNotice failure = cause_;
  if (failure.process_lost) {
    failure.error =
        absl::Status(failure.error.code(),
                     absl::StrCat(std::string(failure.error.message()),
                                  "; when that was noticed:", Activities(now)));
  }
  Announce(std::move(failure), actions);
}

std::string CoordinatorState::Activities(absl::Time now) const {
  std::string text;
  int described = 0;
  for (const auto& [index, rank] : ranks_) {
    if (++described > kMostActivities) {
      absl::StrAppend(&text, "\n  and ", ranks_.size() - kMostActivities,
                      " more");
      break;
    }
    absl::StrAppend(&text, "\n  ", Describe(rank.member), ": ");
    if (rank.activity.empty()) {
      absl::StrAppend(&text, rank.answered ? "in no collective" : "not known");
    } else {
      absl::StrAppend(&text, rank.activity);
    }
    if (!rank.answered && !rank.activity.empty()) {
      absl::StrAppend(&text, " (", internal::FormatWait(now - rank.activity_at),
                      " before)");
    }
  }
  return text;
}

void CoordinatorState::Announce(FailureNotice failure, Actions& actions) {
  phase_ = Phase::kFailed;
  failure_ = std::move(failure);
  ServerMessage message;
  *message.mutable_failure() = ToMessage(*failure_);
  SendToAll(std::move(message), actions);
  for (const auto& [index, rank] : ranks_) {
    if (rank.sent_goodbye && rank.is_connected) {
      actions.send.push_back(
          {{rank.peer}, Message(&ServerMessage::mutable_dismissed)});
    }
  }
}

std::string CoordinatorState::LateStart(absl::Time now) const {
  std::vector<int> missing;
  for (int rank = 0; rank < self_.size(); ++rank) {
    if (!ranks_.contains(rank)) missing.push_back(rank);
  }
  std::string text = absl::StrCat(
      DescribeRanks(missing), missing.size() == 1 ? " has" : " have",
      " not come within ", internal::FormatWait(now - begin_),
      " of the start of ", Describe(self_));
  if (refused_ > 0) {
    absl::StrAppend(&text, "; ", refused_,
                    refused_ == 1 ? " connection" : " connections",
                    " without this job's token came: give all ranks the same "
                    "CROSSHATCH_JOB_TOKEN and CROSSHATCH_JOB_ID");
  }
  return text;
}

CoordinatorState::Actions CoordinatorState::OnTick(absl::Time now) {
  Actions actions;
  while (!strangers_.empty() &&
         now - strangers_.begin()->second > kLongestSilence) {
    actions.drop.push_back(strangers_.begin()->first);
    strangers_.erase(strangers_.begin());
  }
  for (auto& [index, rank] : ranks_) {
    if (rank.is_gone || now - rank.last_received <= times_.heartbeat) continue;
    OnDeath(rank,
            absl::StrCat(" does not answer: no sign of it for ",
                         internal::FormatWait(now - rank.last_received),
                         ", as when a process is stopped or its host or "
                         "network is down"),
            now, actions);
  }
  AnnounceIfKnown(now, actions);
  is_late_ = is_late_ || now - begin_ > times_.start;
  if (phase_ == Phase::kJoining && is_late_) {
    Announce({.of_group = true,
              .error = absl::DeadlineExceededError(LateStart(now))},
             actions);
  }
  if (phase_ == Phase::kFailed && !losses_.world_ranks.empty()) {
    ServerMessage message;
    *message.mutable_failure() = ToMessage(std::exchange(losses_, {}));
    SendToAll(std::move(message), actions);
  }
  if (phase_ == Phase::kRunning && !blobs_.empty() && now >= gather_until_) {
    std::vector<int> missing;
    for (int rank = 0; rank < self_.size(); ++rank) {
      if (!blobs_.contains(rank)) missing.push_back(rank);
    }
    QueryAll({.of_group = true,
              .error = absl::DeadlineExceededError(absl::StrCat(
                  DescribeRanks(missing), " did not come to the exchange of '",
                  gather_name_, "' within ",
                  absl::FormatDuration(gather_timeout_)))},
             now, actions);
  }
  if (now >= next_heartbeat_) {
    next_heartbeat_ = now + times_.interval();
    SendToAll(Message(&ServerMessage::mutable_heartbeat), actions);
  }
  return actions;
}

}  // namespace crosshatch::coordination
