// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/coordination/coordination_server.h"

#include <sys/resource.h>

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/base/start_thread.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/base/waiting.h"

namespace crosshatch::coordination {
namespace {

/// File descriptors in addition to those of the ranks.
constexpr rlim_t kOtherFiles = 256;

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

CoordinationServer::CoordinationServer(Member self, std::string token,
                                       CoordinationTimes times)
    : times_(times),
      state_(std::move(self), std::move(token), times, SteadyNow()) {}

absl::StatusOr<std::unique_ptr<CoordinationServer>> CoordinationServer::Start(
    const std::string& host, int port, Member self, std::string token,
    CoordinationTimes times) {
  const int self_size = self.size();
  std::unique_ptr<CoordinationServer> server(
      new CoordinationServer(std::move(self), std::move(token), times));
  CoordinationServer& s = *server;
  CH_RETURN_IF_ERROR(AllowConnections(self_size));
  const auto wired = [&s](std::unique_lock<std::mutex>& lock) {
    s.changed_.wait(lock, [&s] { return s.has_wire_; });
  };
  ServerWire::Events events;
  events.connected = [&s, wired](int64_t peer) {
    std::unique_lock lock(s.mutex_);
    wired(lock);
    s.Do(s.state_.OnConnected(peer, SteadyNow()));
  };
  events.received = [&s](int64_t peer, const ClientMessage& message) {
    std::lock_guard lock(s.mutex_);
    s.Do(s.state_.OnMessage(peer, message, SteadyNow()));
  };
  events.broken = [&s](int64_t peer) {
    std::lock_guard lock(s.mutex_);
    s.Do(s.state_.OnBroken(peer, SteadyNow()));
    s.changed_.notify_all();
  };
  auto wire = ListenGrpc(host, port, std::move(events));
  {
    // Even without a wire, since a peer may have connected before.
    std::lock_guard lock(s.mutex_);
    if (wire.ok()) s.wire_ = *std::move(wire);
    s.has_wire_ = true;
    s.changed_.notify_all();
  }
  CH_RETURN_IF_ERROR(wire.status());
  CH_ASSIGN_OR_RETURN(
      s.ticker_, StartThread("the coordinator's thread", [&s] { s.Tick(); }));
  return server;
}

CoordinationServer::~CoordinationServer() {
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
}

void CoordinationServer::Do(CoordinatorState::Actions actions) {
  if (wire_ == nullptr) return;
  for (CoordinatorState::Outgoing& out : actions.send) {
    wire_->Send(out.peer, std::move(out.message));
  }
  for (const CoordinatorState::Peer peer : actions.close) wire_->Close(peer);
}

void CoordinationServer::Tick() {
  const auto pause = absl::ToChronoNanoseconds(
      std::min(times_.interval(), absl::Milliseconds(250)));
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, pause, [this] { return is_ending_; })) {
    Do(state_.OnTick(SteadyNow()));
    changed_.notify_all();
  }
}

}  // namespace crosshatch::coordination
