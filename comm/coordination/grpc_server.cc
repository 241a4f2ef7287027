// SPDX-License-Identifier: Apache-2.0
#include <grpcpp/grpcpp.h>
#include <grpcpp/server_posix.h>

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <utility>

#include "absl/status/status.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/coordination/acceptor.h"
#include "crosshatch/comm/coordination/messages.grpc.pb.h"
#include "crosshatch/comm/coordination/wire.h"

namespace crosshatch::coordination {
namespace {

/// How long a connection without a registered rank stays open.
constexpr int kIdleMs = 10000;

class GrpcServer;

/// One connection. gRPC calls the On... functions, OnDone last.
class ServerStream final
    : public grpc::ServerBidiReactor<ClientMessage, ServerMessage> {
 public:
  ServerStream(GrpcServer& server, int64_t peer)
      : server_(server), peer_(peer) {}

  void Begin() { StartRead(&incoming_); }

  void Send(ServerMessage message) {
    std::lock_guard lock(mutex_);
    if (is_closing_ || is_finished_) return;
    outgoing_.push_back(std::move(message));
    if (outgoing_.size() == 1) StartWrite(&outgoing_.front());
  }

  void Close() {
    std::lock_guard lock(mutex_);
    is_closing_ = true;
    if (outgoing_.empty()) FinishOnce();
  }

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override {
    std::lock_guard lock(mutex_);
    outgoing_.pop_front();
    if (!ok) {
      FinishOnce();
    } else if (!outgoing_.empty()) {
      StartWrite(&outgoing_.front());
    } else if (is_closing_) {
      FinishOnce();
    }
  }
  void OnDone() override;

 private:
  void FinishOnce() {
    if (!is_finished_) Finish(grpc::Status::OK);
    is_finished_ = true;
  }

  GrpcServer& server_;
  const int64_t peer_;
  ClientMessage incoming_;

  std::mutex mutex_;
  std::deque<ServerMessage> outgoing_;  // The first one is being written.
  bool is_closing_ = false;
  bool is_finished_ = false;
};

class GrpcServer final : public ServerWire,
                         public Coordination::CallbackService {
 public:
  explicit GrpcServer(Events events) : events_(std::move(events)) {}

  ~GrpcServer() override {
    acceptor_.reset();
    if (server_ == nullptr) return;
    server_->Shutdown(std::chrono::system_clock::now());
    server_->Wait();
    std::unique_lock lock(mutex_);
    none_left_.wait(lock, [this] { return streams_.empty(); });
  }

  absl::Status Listen(const std::string& host, int port) {
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
    return absl::OkStatus();
  }

  int port() const override { return acceptor_->port(); }

  void Send(int64_t peer, ServerMessage message) override {
    std::lock_guard lock(mutex_);
    const auto found = streams_.find(peer);
    if (found != streams_.end()) found->second->Send(std::move(message));
  }

  void Close(int64_t peer) override {
    std::lock_guard lock(mutex_);
    const auto found = streams_.find(peer);
    if (found != streams_.end()) found->second->Close();
  }

  grpc::ServerBidiReactor<ClientMessage, ServerMessage>* Join(
      grpc::CallbackServerContext*) override {
    ServerStream* stream = nullptr;
    int64_t peer = 0;
    {
      std::lock_guard lock(mutex_);
      peer = next_peer_++;
      stream = new ServerStream(*this, peer);
      streams_[peer] = stream;
    }
    events_.connected(peer);
    stream->Begin();
    return stream;
  }

  void Received(int64_t peer, const ClientMessage& message) {
    events_.received(peer, message);
  }
  void Broken(int64_t peer) { events_.broken(peer); }
  void Forget(int64_t peer) {
    std::lock_guard lock(mutex_);
    streams_.erase(peer);
    none_left_.notify_all();
  }

 private:
  const Events events_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<Acceptor> acceptor_;

  std::mutex mutex_;
  std::condition_variable none_left_;
  int64_t next_peer_ = 0;
  std::map<int64_t, ServerStream*> streams_;  // They delete themselves.
};

void ServerStream::OnReadDone(bool ok) {
  if (ok) {
    ClientMessage message;
    message.Swap(&incoming_);
    server_.Received(peer_, message);
    StartRead(&incoming_);
    return;
  }
  server_.Broken(peer_);
  std::lock_guard lock(mutex_);
  FinishOnce();
}

void ServerStream::OnDone() {
  server_.Forget(peer_);
  delete this;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ServerWire>> ListenGrpc(
    const std::string& host, int port, ServerWire::Events events) {
  QuietenGrpc();
  auto server = std::make_unique<GrpcServer>(std::move(events));
  if (const absl::Status status = server->Listen(host, port); !status.ok()) {
    return status;
  }
  return server;
}

}  // namespace crosshatch::coordination
