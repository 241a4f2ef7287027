// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/coordination/coordination_server.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/base/threads.h"

namespace crosshatch::coordination {
namespace {

/// File descriptors in addition to those of the ranks.
constexpr rlim_t kOtherFiles = 256;
/// A registration has bounded texts.
constexpr size_t kMostRegistrationBytes = size_t{32} << 10;

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

/// What an event concerns, other than a client.
constexpr int64_t kEnd = -1;
constexpr int64_t kFirstListener = -2;  // The next one is -3.

/// Events of clients come once for each change.
constexpr uint32_t kClientEvents = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;

}  // namespace

CoordinationServer::CoordinationServer(const Member& self, std::string token,
                                       CoordinationTimes times)
    : times_(times),
      end_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      clock_(times.heartbeat / 2),
      now_(absl::UnixEpoch()),
      state_(self, std::move(token), times, now_),
      events_(epoll_create1(EPOLL_CLOEXEC)) {}

absl::StatusOr<std::unique_ptr<CoordinationServer>> CoordinationServer::Start(
    const std::string& host, int port, const Member& self, std::string token,
    CoordinationTimes times) {
  CH_RETURN_IF_ERROR(AllowConnections(self.size()));
  std::unique_ptr<CoordinationServer> server(
      new CoordinationServer(self, std::move(token), times));
  CoordinationServer& s = *server;
  s.port_ = port;
  CH_ASSIGN_OR_RETURN(s.listeners_, Listen(host, s.port_));
  CH_RETURN_IF_ERROR(s.Watch(s.end_.fd(), kEnd, EPOLLIN, EPOLL_CTL_ADD));
  for (size_t i = 0; i < s.listeners_.size(); ++i) {
    CH_RETURN_IF_ERROR(s.Watch(s.listeners_[i].fd(),
                               kFirstListener - static_cast<Peer>(i), EPOLLIN,
                               EPOLL_CTL_ADD));
  }
  CH_ASSIGN_OR_RETURN(
      s.thread_, StartThread("the coordinator's thread", [&s] { s.Run(); }));
  return server;
}

CoordinationServer::~CoordinationServer() {
  is_ending_ = true;
  eventfd_write(end_.fd(), 1);
  if (thread_.joinable()) thread_.join();
}

absl::Status CoordinationServer::Watch(int fd, Peer peer, uint32_t events,
                                       int operation) {
  epoll_event event = {};
  event.events = events;
  event.data.u64 = static_cast<uint64_t>(peer);
  if (epoll_ctl(events_.fd(), operation, fd, &event) == 0) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("cannot watch its connections: ", std::strerror(errno)));
}

void CoordinationServer::Run() {
  const absl::Duration pause =
      std::min(times_.interval(), absl::Milliseconds(250));
  const int pause_ms =
      std::max(1, static_cast<int>(absl::ToInt64Milliseconds(pause)));
  absl::Time next_tick = now_;
  absl::Time end_by = absl::InfiniteFuture();
  while (true) {
    epoll_event events[64];
    const int count =
        epoll_wait(events_.fd(), events, std::size(events), pause_ms);
    // The time in which this process is stopped does not count.
    now_ = absl::UnixEpoch() +
           clock_.Look(std::chrono::steady_clock::now()).counted;
    for (int i = 0; i < count; ++i) {
      const auto peer = static_cast<Peer>(events[i].data.u64);
      if (peer == kEnd) {
        uint64_t value = 0;
        eventfd_read(end_.fd(), &value);
        end_by = now_ + times_.heartbeat;
      } else if (peer <= kFirstListener) {
        AcceptFrom(listeners_[static_cast<size_t>(kFirstListener - peer)]);
      } else if (const auto found = clients_.find(peer);
                 found != clients_.end()) {
        found->second.connection.Flush();
        Receive(peer, found->second);
      }
    }
    if (now_ >= next_tick) {
      next_tick = now_ + pause;
      Do(state_.OnTick(now_));
    }
    if (is_ending_ &&
        (!state_.is_over() || state_.is_deserted() || now_ >= end_by)) {
      return;
    }
  }
}

void CoordinationServer::AcceptFrom(const File& listener) {
  // Bounded, so that connections that have sent their registration are not
  // taken for strangers.
  for (size_t i = 0; i < CoordinatorState::kMostStrangers / 2; ++i) {
    File socket(
        accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket.fd() < 0) {
      // Without file descriptors the connection waits in the system's queue.
      if (errno == EMFILE || errno == ENFILE) usleep(10000);
      return;
    }
    const Peer peer = next_peer_++;
    if (!Watch(socket.fd(), peer, kClientEvents, EPOLL_CTL_ADD).ok()) return;
    Do(state_.OnConnect(peer, now_));
    const auto [client, is_new] = clients_.emplace(
        peer, Client{Connection(std::move(socket), kMostRegistrationBytes)});
    Receive(peer, client->second);
  }
}

void CoordinationServer::Receive(Peer peer, Client& client) {
  bool lasts = true;
  if (!client.is_closing) {
    bool is_message = true;
    lasts = client.connection.Receive([&](absl::string_view bytes) {
      ClientMessage message;
      is_message =
          message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
      if (!is_message) return false;
      Do(state_.OnMessage(peer, message, now_));
      if (client.is_closing) return false;
      client.connection.set_most(kMostMessageBytes);
      return true;
    }) && is_message;
  }
  if (client.is_closing) {
    lasts = lasts && client.connection.has_queued();
  } else if (lasts && client.connection.has_more()) {
    // The others come first.
    lasts =
        Watch(client.connection.fd(), peer, kClientEvents, EPOLL_CTL_MOD).ok();
  }
  if (!lasts) Close(peer);
}

void CoordinationServer::Close(Peer peer) {
  clients_.erase(peer);
  Do(state_.OnBroken(peer, now_));
}

void CoordinationServer::Do(const CoordinatorState::Actions& actions) {
  for (const CoordinatorState::Outgoing& out : actions.send) {
    const Frame frame = MakeFrame(out.message);
    for (const Peer peer : out.to) {
      const auto found = clients_.find(peer);
      if (found != clients_.end()) found->second.connection.Send(frame);
    }
  }
  for (const Peer peer : actions.close) {
    const auto found = clients_.find(peer);
    if (found != clients_.end()) found->second.is_closing = true;
  }
  for (const Peer peer : actions.drop) Close(peer);
}

}  // namespace crosshatch::coordination
