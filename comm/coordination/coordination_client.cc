// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/coordination/coordination_client.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/process.h"
#include "crosshatch/base/start_thread.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/coordination/failure_message.h"
#include "crosshatch/comm/job_failure.h"

namespace crosshatch::coordination {
namespace {

/// A message has to be smaller than the 4 MiB that gRPC accepts; a larger one
/// ends its stream.
constexpr size_t kMostBlobBytes = size_t{1} << 20;
constexpr size_t kMostTextBytes = 4096;

Member Bounded(Member member) {
  member.set_host(BoundedText(member.host(), kMostTextBytes));
  member.set_program(BoundedText(member.program(), kMostTextBytes));
  member.set_wrong(BoundedText(member.wrong(), kMostTextBytes));
  return member;
}

std::string Rounded(absl::Duration time) {
  return absl::FormatDuration(absl::Trunc(time, absl::Milliseconds(1)));
}

}  // namespace

CoordinationClient::CoordinationClient(Member self, ClientOptions options)
    : self_(Bounded(std::move(self))), options_(std::move(options)) {}

absl::StatusOr<std::unique_ptr<CoordinationClient>> CoordinationClient::Connect(
    const std::string& host, int port, const Member& self,
    const std::string& token, ClientOptions options) {
  std::unique_ptr<CoordinationClient> client(
      new CoordinationClient(self, std::move(options)));
  CoordinationClient& c = *client;
  CH_ASSIGN_OR_RETURN(
      c.wire_,
      ConnectGrpc(host, port, c.options_.times.start, c.options_.still_hopes,
                  {.received = [&c](const ServerMessage& m) { c.Received(m); },
                   .broken = [&c] { c.Broken(); }}));
  ClientMessage registration;
  registration.mutable_registration()->set_token(token);
  *registration.mutable_registration()->mutable_member() = c.self_;
  c.wire_->Send(std::move(registration));
  {
    std::lock_guard lock(c.mutex_);
    c.last_received_ = c.last_check_ = c.next_heartbeat_ = SteadyNow();
  }
  CH_ASSIGN_OR_RETURN(
      c.thread_,
      StartThread(absl::StrCat("the coordination thread of rank ", self.rank()),
                  [&c] { c.Run(); }));
  CH_ASSIGN_OR_RETURN(
      c.watchdog_,
      StartThread(absl::StrCat("the watchdog of rank ", self.rank()),
                  [&c] { c.Watch(); }));
  return client;
}

absl::Status CoordinationClient::AwaitStart() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] {
    return roster_.has_started || !refused_.empty() || !notices_.empty();
  });
  if (!refused_.empty()) {
    return absl::UnauthenticatedError(absl::StrCat(
        Describe(self_), " was sent away by the coordinator: ", refused_));
  }
  return notices_.empty() ? absl::OkStatus() : ResultOf(notices_[0]);
}

CoordinationClient::~CoordinationClient() {
  {
    std::lock_guard lock(mutex_);
    is_ending_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
  if (watchdog_.joinable()) watchdog_.join();
}

void CoordinationClient::Received(const ServerMessage& message) {
  std::lock_guard lock(mutex_);
  last_received_ = SteadyNow();
  switch (message.kind_case()) {
    case ServerMessage::kStarted:
      roster_ = {.has_started = true, .rank_0 = message.started().rank_0()};
      break;
    case ServerMessage::kAnswer: {
      const auto found = answers_.find(message.answer().request());
      if (found != answers_.end()) found->second = message.answer();
      break;
    }
    case ServerMessage::kQuery:
      is_queried_ = true;
      break;
    case ServerMessage::kFailure:
      Add(ToNotice(message.failure()));
      break;
    case ServerMessage::kRefused:
      refused_ = message.refused();
      break;
    case ServerMessage::kDismissed:
      is_dismissed_ = true;
      break;
    case ServerMessage::kHeartbeat:
    case ServerMessage::KIND_NOT_SET:
      return;
  }
  changed_.notify_all();
}

void CoordinationClient::Broken() {
  std::lock_guard lock(mutex_);
  is_broken_ = true;
  Lose("died: its connection ended");
  changed_.notify_all();
}

void CoordinationClient::Add(FailureNotice notice) {
  if (notices_.empty()) failed_at_ = SteadyNow();
  notices_.push_back(std::move(notice));
  has_news_ = true;
  changed_.notify_all();
}

void CoordinationClient::Lose(const std::string& how) {
  if (is_dismissed_ || !refused_.empty()) return;
  if (std::exchange(has_lost_coordinator_, true)) return;
  const std::string who = roster_.has_started
                              ? absl::StrCat("process ", roster_.rank_0.pid(),
                                             " on host ", roster_.rank_0.host())
                              : "the process of rank 0";
  Add({.world_ranks = {0},
       .process_lost = true,
       .error = absl::UnavailableError(
           absl::StrCat(who, ", which coordinates the job, ", how))});
}

absl::StatusOr<std::vector<std::string>> CoordinationClient::Gather(
    const std::string& name, const std::string& blob, absl::Duration timeout) {
  if (name.size() + blob.size() > kMostBlobBytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "'", BoundedText(name, 100), "' and its blob have ",
        name.size() + blob.size(), " bytes; the most is ", kMostBlobBytes));
  }
  ClientMessage message;
  coordination::Gather& gather = *message.mutable_gather();
  gather.set_name(name);
  gather.set_blob(blob);
  gather.set_timeout_ms(absl::ToInt64Milliseconds(timeout));
  std::unique_lock lock(mutex_);
  const int64_t id = ++last_request_;
  answers_[id] = std::nullopt;
  lock.unlock();
  gather.set_request(id);
  wire_->Send(std::move(message));
  lock.lock();
  changed_.wait(lock, [this, id] {
    return answers_[id].has_value() || !notices_.empty();
  });
  const std::optional<Answer> answer = std::move(answers_[id]);
  answers_.erase(id);
  if (!answer.has_value()) {
    return absl::AbortedError(absl::StrCat(
        "the job failed: ", std::string(ResultOf(notices_[0]).message())));
  }
  if (answer->code() != 0) {
    return absl::Status(static_cast<absl::StatusCode>(answer->code()),
                        answer->text());
  }
  return std::vector<std::string>(answer->blobs().begin(),
                                  answer->blobs().end());
}

absl::Status CoordinationClient::Leave() {
  {
    std::lock_guard lock(mutex_);
    is_leaving_ = true;
  }
  ClientMessage message;
  message.mutable_goodbye();
  wire_->Send(std::move(message));
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] {
    return is_dismissed_ || is_broken_ || !notices_.empty();
  });
  if (notices_.empty()) return absl::OkStatus();
  // Without a goodbye the coordinator would report a lost rank. A dead
  // coordinator does not answer.
  changed_.wait_for(lock, absl::ToChronoNanoseconds(options_.times.query()),
                    [this] { return is_dismissed_ || is_broken_; });
  changed_.wait(lock, [this] { return has_announced_; });
  return ResultOf(notices_[0]);
}

std::optional<FailureNotice> CoordinationClient::failure() const {
  std::lock_guard lock(mutex_);
  if (notices_.empty()) return std::nullopt;
  return notices_[0];
}

void CoordinationClient::Report(const FailureNotice& notice) {
  ClientMessage message;
  *message.mutable_failure() = ToMessage(notice);
  wire_->Send(std::move(message));
}

absl::Status CoordinationClient::loss() const {
  std::lock_guard lock(mutex_);
  for (const FailureNotice& notice : notices_) {
    if (notice.process_lost || notice.cut_off) return ResultOf(notice);
  }
  return absl::OkStatus();
}

void CoordinationClient::OnFailure(Listener listener) {
  {
    std::lock_guard lock(listener_mutex_);
    listener_ = std::move(listener);
    num_delivered_ = 0;
  }
  std::lock_guard lock(mutex_);
  has_news_ = true;
  changed_.notify_all();
}

void CoordinationClient::SetActivity(Activity activity) {
  std::lock_guard lock(activity_mutex_);
  activity_ = std::move(activity);
}

std::string CoordinationClient::CurrentActivity() {
  std::lock_guard lock(activity_mutex_);
  return activity_ ? BoundedText(activity_(), kMostTextBytes) : "";
}

void CoordinationClient::CheckSilence() {
  const absl::Time now = SteadyNow();
  // While this process was stopped it received nothing.
  if (now - last_check_ > options_.times.heartbeat / 2) last_received_ = now;
  last_check_ = now;
  if (has_lost_coordinator_ || is_dismissed_ ||
      now - last_received_ <= options_.times.heartbeat) {
    return;
  }
  const std::string silence =
      absl::StrCat("no sign of it for ", Rounded(now - last_received_));
  Lose(absl::StrCat("does not answer: ", silence,
                    ", as when a process is stopped or its host or network "
                    "is down"));
  ClientMessage message;
  message.set_lost(absl::StrCat("had ", silence));
  wire_->Send(std::move(message));
}

void CoordinationClient::Watch() {
  std::unique_lock lock(mutex_);
  const auto is_late = [this] {
    return !notices_.empty() && !is_leaving_ && roster_.has_started &&
           SteadyNow() - failed_at_ > options_.leave;
  };
  while (!is_late()) {
    if (is_ending_) return;
    if (notices_.empty()) {
      changed_.wait(lock, [this] { return is_ending_ || !notices_.empty(); });
    } else {
      changed_.wait_for(lock, std::chrono::milliseconds(10));
    }
  }
  const std::string message = absl::StrCat(
      "[rank ", self_.rank(), "] rank ", self_.rank(),
      " did not come back within ", absl::FormatDuration(options_.leave),
      " after the job failed, and its process is ended: ",
      std::string(ResultOf(notices_[0]).message()));
  lock.unlock();
  (options_.end_process ? options_.end_process : EndProcess)(message);
}

void CoordinationClient::Run() {
  const absl::Duration interval = options_.times.interval();
  const auto pause =
      absl::ToChronoNanoseconds(std::min(interval, absl::Milliseconds(250)));
  std::unique_lock lock(mutex_);
  while (!is_ending_ || (!notices_.empty() && !has_announced_)) {
    const bool is_queried = std::exchange(is_queried_, false);
    has_news_ = false;
    const bool is_time = SteadyNow() >= next_heartbeat_;
    if (is_time) next_heartbeat_ = SteadyNow() + interval;
    const std::vector<FailureNotice> notices = notices_;
    const bool announces = !notices.empty() && !has_announced_;
    const Roster roster = roster_;
    lock.unlock();
    if (is_queried || is_time) {
      ClientMessage message;
      if (is_queried) {
        message.set_activity(CurrentActivity());
      } else {
        message.set_heartbeat(CurrentActivity());
      }
      wire_->Send(std::move(message));
    }
    {
      std::lock_guard listener_lock(listener_mutex_);
      while (listener_ && num_delivered_ < notices.size())
        listener_(notices[num_delivered_++]);
    }
    if (announces && options_.on_failure) {
      options_.on_failure(notices[0], roster);
    }
    lock.lock();
    if (announces) {
      has_announced_ = true;
      changed_.notify_all();
    }
    CheckSilence();
    changed_.wait_for(
        lock, pause, [this] { return is_ending_ || is_queried_ || has_news_; });
  }
}

}  // namespace crosshatch::coordination
