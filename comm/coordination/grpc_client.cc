// SPDX-License-Identifier: Apache-2.0
#include <grpc/support/log.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <functional>
#include <mutex>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/base/waiting.h"
#include "crosshatch/comm/coordination/messages.grpc.pb.h"
#include "crosshatch/comm/coordination/wire.h"

namespace crosshatch::coordination {
namespace {

/// Interval of calls of `still_hopes`.
constexpr std::chrono::nanoseconds kLook = std::chrono::seconds(1);

class GrpcClient final
    : public ClientWire,
      private grpc::ClientBidiReactor<ClientMessage, ServerMessage> {
 public:
  GrpcClient(std::shared_ptr<grpc::Channel> channel, Events events)
      : events_(std::move(events)),
        channel_(std::move(channel)),
        stub_(Coordination::NewStub(channel_)) {}

  void Begin() {
    stub_->async()->Join(&context_, this);
    // Keeps the stream open, because writes also start outside of gRPC's
    // callbacks.
    AddHold();
    StartRead(&incoming_);
    StartCall();
  }

  ~GrpcClient() override {
    context_.TryCancel();
    RemoveHold();
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return is_done_; });
  }

  void Send(ClientMessage message) override {
    std::lock_guard lock(mutex_);
    if (is_broken_) return;
    outgoing_.push_back(std::move(message));
    if (outgoing_.size() == 1) StartWrite(&outgoing_.front());
  }

 private:
  void OnReadDone(bool ok) override {
    if (ok) {
      ServerMessage message;
      message.Swap(&incoming_);
      events_.received(message);
      StartRead(&incoming_);
      return;
    }
    {
      std::lock_guard lock(mutex_);
      is_broken_ = true;
    }
    events_.broken();
  }
  void OnWriteDone(bool ok) override {
    std::lock_guard lock(mutex_);
    outgoing_.pop_front();
    if (!ok) {
      is_broken_ = true;
    } else if (!outgoing_.empty() && !is_broken_) {
      StartWrite(&outgoing_.front());
    }
  }
  void OnDone(const grpc::Status&) override {
    // The waiting thread destroys this object, with the condition.
    std::lock_guard lock(mutex_);
    is_done_ = true;
    done_.notify_all();
  }

  const Events events_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<Coordination::Stub> stub_;
  grpc::ClientContext context_;
  ServerMessage incoming_;

  std::mutex mutex_;
  std::condition_variable done_;
  std::deque<ClientMessage> outgoing_;  // The first one is being written.
  bool is_broken_ = false;
  bool is_done_ = false;
};

}  // namespace

void QuietenGrpc() {
  static const bool once = [] {
    if (std::getenv("GRPC_VERBOSITY") == nullptr) {
      gpr_set_log_function([](gpr_log_func_args*) {});
    }
    return true;
  }();
  static_cast<void>(once);
}

absl::StatusOr<std::unique_ptr<ClientWire>> ConnectGrpc(
    const std::string& host, int port, absl::Duration timeout,
    const std::function<bool()>& still_hopes, ClientWire::Events events) {
  QuietenGrpc();
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 500);
  // Disables HTTP proxies.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // Gives each client its own connection, which ends with it.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  const std::string target = absl::StrCat(host, ":", port);
  std::shared_ptr<grpc::Channel> channel = grpc::CreateCustomChannel(
      target, grpc::InsecureChannelCredentials(), arguments);
  using Clock = std::chrono::system_clock;
  const auto until = Clock::now() + WaitTime(timeout);
  while (!channel->WaitForConnected(std::min(until, Clock::now() + kLook))) {
    if (Clock::now() >= until) {
      return absl::DeadlineExceededError(
          absl::StrCat("nobody listened on ", target, " within ",
                       absl::FormatDuration(timeout)));
    }
    if (still_hopes && !still_hopes()) {
      return absl::CancelledError(
          absl::StrCat("nobody listened on ", target, " so far"));
    }
  }
  auto client =
      std::make_unique<GrpcClient>(std::move(channel), std::move(events));
  client->Begin();
  return client;
}

}  // namespace crosshatch::coordination
