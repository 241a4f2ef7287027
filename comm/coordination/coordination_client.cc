// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/coordination/coordination_client.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "crosshatch/base/process.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/base/threads.h"
#include "crosshatch/comm/coordination/failure_message.h"
#include "crosshatch/comm/job_failure.h"

namespace crosshatch::coordination {
namespace {

constexpr size_t kMostBlobBytes = size_t{1} << 20;
constexpr size_t kMostTextBytes = 4096;

Member Bounded(Member member) {
  member.set_host(BoundedText(member.host(), kMostTextBytes));
  member.set_program(BoundedText(member.program(), kMostTextBytes));
  member.set_wrong(BoundedText(member.wrong(), kMostTextBytes));
  return member;
}

}  // namespace

CoordinationClient::CoordinationClient(Member self, ClientOptions options)
    : self_(Bounded(std::move(self))),
      options_(std::move(options)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      clock_(options_.times.heartbeat / 2) {}

absl::StatusOr<std::unique_ptr<CoordinationClient>> CoordinationClient::Connect(
    const std::string& host, int port, const Member& self,
    const std::string& token, ClientOptions options) {
  std::unique_ptr<CoordinationClient> client(
      new CoordinationClient(self, std::move(options)));
  CoordinationClient& c = *client;
  CH_RETURN_IF_ERROR(c.Register(host, port, token));
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

absl::Status CoordinationClient::Register(const std::string& host, int port,
                                          const std::string& token) {
  const absl::Duration timeout = options_.times.start;
  const absl::Time deadline = absl::Now() + timeout;
  const auto within = [&](const absl::Status& error) {
    return absl::Status(error.code(),
                        absl::StrCat(std::string(error.message()), " within ",
                                     absl::FormatDuration(timeout)));
  };
  ClientMessage registration;
  registration.mutable_registration()->set_token(token);
  *registration.mutable_registration()->mutable_member() = self_;
  std::lock_guard lock(mutex_);
  // What closes the connection without an answer is no coordinator, or that of
  // a job that ends.
  while (num_received_ == 0) {
    absl::StatusOr<File> socket = Dial(host, port, deadline);
    if (!socket.ok()) return within(socket.status());
    connection_.emplace(*std::move(socket));
    connection_->Send(MakeFrame(registration));
    is_broken_ = false;
    while (num_received_ == 0 && !is_broken_) {
      const absl::Duration left = deadline - absl::Now();
      if (left <= absl::ZeroDuration()) {
        return within(absl::DeadlineExceededError(
            absl::StrCat("no coordinator answered on ", host, ":", port)));
      }
      pollfd change = {.fd = connection_->fd(), .events = POLLIN, .revents = 0};
      poll(&change, 1,
           static_cast<int>(
               absl::ToInt64Milliseconds(std::min(left, absl::Seconds(1)))));
      Receive();
    }
    if (num_received_ == 0) absl::SleepFor(absl::Milliseconds(100));
  }
  if (is_broken_) Lose("died: its connection ended");
  last_received_ = next_heartbeat_ = Now();
  return absl::OkStatus();
}

absl::Status CoordinationClient::AwaitStart() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] {
    return started_.has_value() || !refused_.empty() || !notices_.empty();
  });
  if (!refused_.empty()) {
    return absl::UnauthenticatedError(absl::StrCat(
        Describe(self_), " was refused by the coordinator: ", refused_));
  }
  return notices_.empty() ? absl::OkStatus() : ResultOf(notices_[0]);
}

CoordinationClient::~CoordinationClient() {
  {
    std::lock_guard lock(mutex_);
    is_ending_ = true;
    changed_.notify_all();
  }
  WakeThread();
  if (thread_.joinable()) thread_.join();
  if (watchdog_.joinable()) watchdog_.join();
}

void CoordinationClient::WakeThread() { eventfd_write(wake_.fd(), 1); }

void CoordinationClient::Send(const ClientMessage& message) {
  std::lock_guard lock(mutex_);
  connection_->Send(MakeFrame(message));
}

absl::Time CoordinationClient::Now() {
  return absl::UnixEpoch() +
         clock_.Look(std::chrono::steady_clock::now()).counted;
}

void CoordinationClient::Receive() {
  if (is_broken_) return;
  connection_->Flush();
  is_broken_ = !connection_->Receive([this](absl::string_view bytes) {
    ServerMessage message;
    if (message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
      Received(message);
    }
    return true;
  });
  if (is_broken_ && num_received_ > 0) Lose("died: its connection ended");
}

void CoordinationClient::Received(const ServerMessage& message) {
  last_received_ = Now();
  ++num_received_;
  switch (message.kind_case()) {
    case ServerMessage::kStarted:
      started_ = message.started();
      break;
    case ServerMessage::kGathered:
      gathered_ = message.gathered();
      break;
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

void CoordinationClient::Add(FailureNotice notice) {
  if (notices_.empty()) failed_at_ = Now();
  notices_.push_back(std::move(notice));
  changed_.notify_all();
}

void CoordinationClient::Lose(const std::string& how) {
  if (is_dismissed_ || !refused_.empty()) return;
  if (std::exchange(has_lost_coordinator_, true)) return;
  if (notices_.empty()) own_at_loss_ = own_error_;
  const std::string process =
      started_.has_value()
          ? absl::StrCat("process ", started_->rank_0().pid(), " on host ",
                         started_->rank_0().host())
          : "the process of rank 0";
  Add({.world_ranks = {0},
       .process_lost = true,
       .error = absl::UnavailableError(
           absl::StrCat(process, ", which coordinates the job, ", how))});
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
  connection_->Send(MakeFrame(message));
  changed_.wait(lock,
                [this] { return gathered_.has_value() || !notices_.empty(); });
  if (!gathered_.has_value()) {
    return absl::AbortedError(absl::StrCat(
        "the job failed: ", std::string(ResultOf(notices_[0]).message())));
  }
  const Gathered all = *std::exchange(gathered_, std::nullopt);
  return std::vector<std::string>(all.blobs().begin(), all.blobs().end());
}

std::string CoordinationClient::coordinator_host() const {
  std::lock_guard lock(mutex_);
  return connection_->PeerHost();
}

std::vector<std::pair<int, int>> CoordinationClient::neighbours() const {
  std::lock_guard lock(mutex_);
  std::vector<std::pair<int, int>> neighbours;
  if (!started_.has_value()) return neighbours;
  for (const Neighbour& each : started_->neighbours()) {
    neighbours.emplace_back(each.rank(), static_cast<int>(each.pid()));
  }
  return neighbours;
}

absl::Status CoordinationClient::Leave() {
  {
    std::lock_guard lock(mutex_);
    is_leaving_ = true;
  }
  ClientMessage message;
  message.mutable_goodbye();
  Send(message);
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
  Send(message);
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
  WakeThread();
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
  const absl::Duration silence = Now() - last_received_;
  if (has_lost_coordinator_ || is_dismissed_ ||
      silence <= options_.times.heartbeat) {
    return;
  }
  const std::string text =
      absl::StrCat("no sign of it for ", internal::FormatWait(silence));
  Lose(absl::StrCat("does not answer: ", text,
                    ", as when a process is stopped or its host or network "
                    "is down"));
  ClientMessage message;
  message.set_lost(absl::StrCat("had ", text));
  connection_->Send(MakeFrame(message));
}

void CoordinationClient::Watch() {
  std::unique_lock lock(mutex_);
  const auto is_late = [this] {
    return !notices_.empty() && !is_leaving_ && started_.has_value() &&
           Now() - failed_at_ > options_.leave;
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
  const int pause_ms =
      std::max(1, static_cast<int>(absl::ToInt64Milliseconds(
                      std::min(interval, absl::Milliseconds(250)))));
  std::unique_lock lock(mutex_);
  while (!is_ending_ || (!notices_.empty() && !has_announced_)) {
    const bool is_queried = std::exchange(is_queried_, false);
    const bool is_time = Now() >= next_heartbeat_;
    if (is_time) next_heartbeat_ = Now() + interval;
    const std::vector<FailureNotice> notices = notices_;
    const bool announces = !notices.empty() && !has_announced_;
    const absl::Status own = own_at_loss_;
    const int fd = is_broken_ ? -1 : connection_->fd();
    const bool has_queued = connection_->has_queued();
    lock.unlock();
    if (is_queried || is_time) {
      ClientMessage message;
      if (is_queried) {
        message.set_activity(CurrentActivity());
      } else {
        message.set_heartbeat(CurrentActivity());
      }
      Send(message);
    }
    {
      std::lock_guard listener_lock(listener_mutex_);
      while (listener_ && num_delivered_ < notices.size())
        listener_(notices[num_delivered_++]);
    }
    if (announces && options_.on_failure) {
      options_.on_failure(notices[0], own);
    }
    if (announces) {
      lock.lock();
      has_announced_ = true;
      changed_.notify_all();
      lock.unlock();
    }
    pollfd changes[] = {
        {.fd = fd,
         .events = static_cast<short>(has_queued ? POLLIN | POLLOUT : POLLIN),
         .revents = 0},
        {.fd = wake_.fd(), .events = POLLIN, .revents = 0}};
    poll(changes, std::size(changes), pause_ms);
    eventfd_t count = 0;
    eventfd_read(wake_.fd(), &count);
    lock.lock();
    Receive();
    CheckSilence();
  }
}

}  // namespace crosshatch::coordination
