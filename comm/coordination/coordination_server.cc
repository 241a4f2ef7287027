// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/coordination/coordination_server.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/server_posix.h>
#include <sys/resource.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/base/start_thread.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/base/waiting.h"
#include "crosshatch/comm/coordination/acceptor.h"
#include "crosshatch/comm/coordination/messages.grpc.pb.h"
#include "crosshatch/comm/coordination/wire.h"

namespace crosshatch::coordination {
namespace {

/// File descriptors in addition to those of the ranks.
constexpr rlim_t kOtherFiles = 256;
/// How long a connection without a stream stays open.
constexpr int kIdleMs = 10000;

/// Raises the limit of file descriptors to a connection for each of `ranks`.
absl::Status AllowConnections(int ranks) {
  rlimit files = {};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0) return absl::OkStatus();
  const rlim_t need = static_cast<rlim_t>(ranks) + kOtherFiles;
  if (files.rlim_cur == RLIM_INFINITY || files.rlim_cur >= need) {
    return absl::OkStatus();
  }
  if (files.rlim_max != RLIM_INFINITY && files.rlim_max < need) {
    return absl::ResourceExhaustedError(
        absl::StrCat("of a job of ", ranks, " ranks needs ", need,
                     " file descriptors, a connection to each rank among them, "
                     "and its process may have ",
                     files.rlim_max, ": raise the limit where it is started ",
                     "(ulimit -n ", need, ")"));
  }
  files.rlim_cur = need;
  setrlimit(RLIMIT_NOFILE, &files);
  return absl::OkStatus();
}

}  // namespace

class CoordinationServer::Service final : public Coordination::CallbackService {
 public:
  Service(const Member& self, std::string token, CoordinationTimes times)
      : times_(times), state_(self, std::move(token), times, SteadyNow()) {}
  ~Service() override;

  absl::Status Start(const std::string& host, int port);
  int port() const { return acceptor_->port(); }

 private:
  using Peer = CoordinatorState::Peer;

  /// One connection. gRPC calls the On... functions; OnDone is the last of
  /// them. The service's mutex guards it and is held during Send and Close.
  class Stream final
      : public grpc::ServerBidiReactor<ClientMessage, ServerMessage> {
   public:
    Stream(Service& service, Peer peer) : service_(service), peer_(peer) {
      StartRead(&incoming_);
    }
    void Send(ServerMessage message);
    /// Ends the connection once all queued messages have been written.
    void Close();

    void OnReadDone(bool ok) override;
    void OnWriteDone(bool ok) override;
    void OnDone() override;

   private:
    void FinishOnce();

    Service& service_;
    const Peer peer_;
    ClientMessage incoming_;
    std::deque<ServerMessage> outgoing_;  // The first is being written.
    bool is_closing_ = false;
    bool is_finished_ = false;
  };

  grpc::ServerBidiReactor<ClientMessage, ServerMessage>* Join(
      grpc::CallbackServerContext*) override;
  /// \pre mutex_ is held.
  void Do(CoordinatorState::Actions actions);
  void Tick();

  const CoordinationTimes times_;
  std::mutex mutex_;
  std::condition_variable changed_;
  CoordinatorState state_;
  Peer next_peer_ = 0;
  std::map<Peer, Stream*> streams_;  // They delete themselves.
  bool is_ending_ = false;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<Acceptor> acceptor_;
  std::thread ticker_;
};

void CoordinationServer::Service::Stream::Send(ServerMessage message) {
  if (is_closing_ || is_finished_) return;
  outgoing_.push_back(std::move(message));
  if (outgoing_.size() == 1) StartWrite(&outgoing_.front());
}

void CoordinationServer::Service::Stream::Close() {
  is_closing_ = true;
  if (outgoing_.empty()) FinishOnce();
}

void CoordinationServer::Service::Stream::FinishOnce() {
  if (!std::exchange(is_finished_, true)) Finish(grpc::Status::OK);
}

void CoordinationServer::Service::Stream::OnReadDone(bool ok) {
  std::lock_guard lock(service_.mutex_);
  CoordinatorState& state = service_.state_;
  if (ok) {
    service_.Do(state.OnMessage(peer_, incoming_, SteadyNow()));
    StartRead(&incoming_);
    return;
  }
  service_.Do(state.OnBroken(peer_, SteadyNow()));
  service_.changed_.notify_all();
  FinishOnce();
}

void CoordinationServer::Service::Stream::OnWriteDone(bool ok) {
  std::lock_guard lock(service_.mutex_);
  outgoing_.pop_front();
  if (ok && !outgoing_.empty()) {
    StartWrite(&outgoing_.front());
  } else if (!ok || is_closing_) {
    FinishOnce();
  }
}

void CoordinationServer::Service::Stream::OnDone() {
  {
    std::lock_guard lock(service_.mutex_);
    service_.streams_.erase(peer_);
    service_.changed_.notify_all();
  }
  delete this;
}

grpc::ServerBidiReactor<ClientMessage, ServerMessage>*
CoordinationServer::Service::Join(grpc::CallbackServerContext*) {
  std::lock_guard lock(mutex_);
  const Peer peer = next_peer_++;
  state_.OnConnected(peer, SteadyNow());
  return streams_[peer] = new Stream(*this, peer);
}

absl::Status CoordinationServer::Service::Start(const std::string& host,
                                                int port) {
  QuietenGrpc();
  grpc::ServerBuilder builder;
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, kIdleMs);
  builder.RegisterService(this);
  server_ = builder.BuildAndStart();
  if (server_ == nullptr) {
    return absl::ResourceExhaustedError("cannot start gRPC's server");
  }
  CH_ASSIGN_OR_RETURN(acceptor_, Acceptor::Listen(host, port, [this](int fd) {
                        grpc::AddInsecureChannelFromFd(server_.get(), fd);
                      }));
  CH_ASSIGN_OR_RETURN(
      ticker_, StartThread("the coordinator's thread", [this] { Tick(); }));
  return absl::OkStatus();
}

CoordinationServer::Service::~Service() {
  {
    std::unique_lock lock(mutex_);
    if (state_.is_over()) {
      changed_.wait_for(lock, WaitTime(times_.heartbeat),
                        [this] { return state_.is_deserted(); });
    }
    is_ending_ = true;
    changed_.notify_all();
  }
  if (ticker_.joinable()) ticker_.join();
  acceptor_.reset();
  if (server_ == nullptr) return;
  server_->Shutdown(std::chrono::system_clock::now());
  server_->Wait();
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return streams_.empty(); });
}

void CoordinationServer::Service::Do(CoordinatorState::Actions actions) {
  for (CoordinatorState::Outgoing& out : actions.send) {
    const auto found = streams_.find(out.peer);
    if (found != streams_.end()) found->second->Send(std::move(out.message));
  }
  for (const Peer peer : actions.close) {
    const auto found = streams_.find(peer);
    if (found != streams_.end()) found->second->Close();
  }
}

void CoordinationServer::Service::Tick() {
  const auto pause = absl::ToChronoNanoseconds(
      std::min(times_.interval(), absl::Milliseconds(250)));
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, pause, [this] { return is_ending_; })) {
    Do(state_.OnTick(SteadyNow()));
    changed_.notify_all();
  }
}

CoordinationServer::CoordinationServer(std::unique_ptr<Service> service)
    : service_(std::move(service)) {}

CoordinationServer::~CoordinationServer() = default;

int CoordinationServer::port() const { return service_->port(); }

absl::StatusOr<std::unique_ptr<CoordinationServer>> CoordinationServer::Start(
    const std::string& host, int port, const Member& self, std::string token,
    CoordinationTimes times) {
  CH_RETURN_IF_ERROR(AllowConnections(self.size()));
  auto service = std::make_unique<Service>(self, std::move(token), times);
  CH_RETURN_IF_ERROR(service->Start(host, port));
  return std::unique_ptr<CoordinationServer>(
      new CoordinationServer(std::move(service)));
}

}  // namespace crosshatch::coordination
