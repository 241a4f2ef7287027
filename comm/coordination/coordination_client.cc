// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/coordination/coordination_client.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <utility>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/process.h"
#include "crosshatch/base/start_thread.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/base/waiting.h"
#include "crosshatch/comm/coordination/failure_message.h"
#include "crosshatch/comm/coordination/messages.grpc.pb.h"
#include "crosshatch/comm/coordination/wire.h"
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

/// Connects to `host`, and retries until a process listens there. Resolving a
/// name, or a host's second address, may take several attempts.
absl::StatusOr<std::shared_ptr<grpc::Channel>> Dial(const std::string& host,
                                                    int port,
                                                    absl::Duration timeout) {
  QuietenGrpc();
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 500);
  // Proxies for the web are not used.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // Each client of a process has a connection of its own, which ends with it.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  const std::string target = AddressText(host, port);
  std::shared_ptr<grpc::Channel> channel = grpc::CreateCustomChannel(
      target, grpc::InsecureChannelCredentials(), arguments);
  if (channel->WaitForConnected(std::chrono::system_clock::now() +
                                WaitTime(timeout))) {
    return channel;
  }
  return absl::DeadlineExceededError(
      absl::StrCat("nobody listened on ", target, " within ",
                   absl::FormatDuration(timeout)));
}

}  // namespace

/// The connection to the coordinator. Destroying it ends the connection; no
/// event comes once that has returned.
class CoordinationClient::Stream final
    : private grpc::ClientBidiReactor<ClientMessage, ServerMessage> {
 public:
  Stream(CoordinationClient& client, std::shared_ptr<grpc::Channel> channel)
      : client_(client),
        channel_(std::move(channel)),
        stub_(Coordination::NewStub(channel_)) {
    stub_->async()->Join(&context_, this);
    // Writes start outside of gRPC's calls too, and it must know that more may
    // come.
    AddHold();
    StartRead(&incoming_);
    StartCall();
  }

  ~Stream() override {
    context_.TryCancel();
    RemoveHold();
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return is_done_; });
  }

  /// Queues a message; ignored once the connection has ended.
  void Send(ClientMessage message) {
    std::lock_guard lock(mutex_);
    if (is_broken_) return;
    outgoing_.push_back(std::move(message));
    if (outgoing_.size() == 1) StartWrite(&outgoing_.front());
  }

 private:
  void OnReadDone(bool ok) override {
    if (ok) {
      client_.Received(incoming_);
      StartRead(&incoming_);
      return;
    }
    {
      std::lock_guard lock(mutex_);
      is_broken_ = true;
    }
    client_.Broken();
  }
  void OnWriteDone(bool ok) override {
    std::lock_guard lock(mutex_);
    outgoing_.pop_front();
    is_broken_ = is_broken_ || !ok;
    if (!is_broken_ && !outgoing_.empty()) StartWrite(&outgoing_.front());
  }
  void OnDone(const grpc::Status&) override {
    // The waiting thread destroys this object, with the condition.
    std::lock_guard lock(mutex_);
    is_done_ = true;
    done_.notify_all();
  }

  CoordinationClient& client_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<Coordination::Stub> stub_;
  grpc::ClientContext context_;
  ServerMessage incoming_;

  std::mutex mutex_;
  std::condition_variable done_;
  std::deque<ClientMessage> outgoing_;  // The first is being written.
  bool is_broken_ = false;
  bool is_done_ = false;
};

CoordinationClient::CoordinationClient(Member self, ClientOptions options)
    : self_(Bounded(std::move(self))), options_(std::move(options)) {}

absl::StatusOr<std::unique_ptr<CoordinationClient>> CoordinationClient::Connect(
    const std::string& host, int port, const Member& self,
    const std::string& token, ClientOptions options) {
  std::unique_ptr<CoordinationClient> client(
      new CoordinationClient(self, std::move(options)));
  CoordinationClient& c = *client;
  CH_ASSIGN_OR_RETURN(std::shared_ptr<grpc::Channel> channel,
                      Dial(host, port, c.options_.times.start));
  c.stream_ = std::make_unique<Stream>(c, std::move(channel));
  ClientMessage registration;
  registration.mutable_registration()->set_token(token);
  *registration.mutable_registration()->mutable_member() = c.self_;
  c.stream_->Send(std::move(registration));
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
    return rank_0_.has_value() || !refused_.empty() || !notices_.empty();
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
      rank_0_ = message.started().rank_0();
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
  if (notices_.empty()) own_at_loss_ = own_error_;
  const std::string who = rank_0_.has_value()
                              ? absl::StrCat("process ", rank_0_->pid(),
                                             " on host ", rank_0_->host())
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
  stream_->Send(std::move(message));
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
  stream_->Send(std::move(message));
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
  // A group's failure is that of all its members. A broken link and a wait in
  // vain may be consequences of a loss.
  if (!notice.of_group && !notice.cut_off &&
      !absl::IsDeadlineExceeded(notice.error) &&
      notice.world_ranks == std::vector<int>{self_.rank()}) {
    std::lock_guard lock(mutex_);
    if (own_error_.ok()) own_error_ = notice.error;
  }
  ClientMessage message;
  *message.mutable_failure() = ToMessage(notice);
  stream_->Send(std::move(message));
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
  stream_->Send(std::move(message));
}

void CoordinationClient::Watch() {
  std::unique_lock lock(mutex_);
  const auto is_late = [this] {
    return !notices_.empty() && !is_leaving_ && rank_0_.has_value() &&
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
    const absl::Status own = own_at_loss_;
    lock.unlock();
    if (is_queried || is_time) {
      ClientMessage message;
      if (is_queried) {
        message.set_activity(CurrentActivity());
      } else {
        message.set_heartbeat(CurrentActivity());
      }
      stream_->Send(std::move(message));
    }
    {
      std::lock_guard listener_lock(listener_mutex_);
      while (listener_ && num_delivered_ < notices.size())
        listener_(notices[num_delivered_++]);
    }
    if (announces && options_.on_failure) {
      options_.on_failure(notices[0], own);
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
