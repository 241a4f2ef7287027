// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_COORDINATION_COORDINATION_SERVER_H_
#define CROSSHATCH_COMM_COORDINATION_COORDINATION_SERVER_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "crosshatch/comm/coordination/connection.h"
#include "crosshatch/comm/coordination/coordinator_state.h"
#include "crosshatch/comm/watch_clock.h"

namespace crosshatch::coordination {

/// The coordinator of a job, in the process of rank 0: CoordinatorState with
/// sockets, a clock and a thread.
class CoordinationServer {
 public:
  /// Listens on `host` alone; on `port`, or any free one if 0.
  /// \param self rank 0, which joins as a client, too.
  /// \param token processes without it are refused.
  /// \error kUnavailable if it cannot listen; kResourceExhausted.
  static absl::StatusOr<std::unique_ptr<CoordinationServer>> Start(
      const std::string& host, int port, const Member& self, std::string token,
      CoordinationTimes times);

  /// If the job is over, first waits until the ranks have left, so that all
  /// have received its failure, for the heartbeat timeout at most.
  ~CoordinationServer();
  CoordinationServer(const CoordinationServer&) = delete;
  CoordinationServer& operator=(const CoordinationServer&) = delete;

  int port() const { return port_; }

 private:
  using Peer = CoordinatorState::Peer;

  struct Client {
    Connection connection;
    /// Was refused. Is not received from, and ends once all queued messages
    /// are sent.
    bool is_closing = false;
  };

  CoordinationServer(const Member& self, std::string token,
                     CoordinationTimes times);
  /// Reports events of `fd` as `peer`.
  /// \param operation of epoll; EPOLL_CTL_MOD reports again what has come.
  absl::Status Watch(int fd, Peer peer, uint32_t events, int operation);
  void Run();
  void AcceptFrom(const File& listener);
  void Receive(Peer peer, Client& client);
  void Close(Peer peer);
  void Do(const CoordinatorState::Actions& actions);

  const CoordinationTimes times_;
  int port_ = 0;
  File end_;  // An eventfd that wakes the thread.
  std::atomic<bool> is_ending_ = false;
  std::thread thread_;

  // Of the thread.
  internal::WatchClock clock_;
  absl::Time now_;
  CoordinatorState state_;
  std::vector<File> listeners_;
  File events_;  // An epoll.
  Peer next_peer_ = 0;
  std::map<Peer, Client> clients_;
};

}  // namespace crosshatch::coordination

#endif  // CROSSHATCH_COMM_COORDINATION_COORDINATION_SERVER_H_
