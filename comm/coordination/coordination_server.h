// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_COORDINATION_COORDINATION_SERVER_H_
#define CROSSHATCH_COMM_COORDINATION_COORDINATION_SERVER_H_

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "crosshatch/comm/coordination/coordinator_state.h"
#include "crosshatch/comm/coordination/wire.h"

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
      const std::string& host, int port, Member self, std::string token,
      CoordinationTimes times);

  /// If the job is over, first waits until the ranks have left, so that all
  /// have received its failure, for the heartbeat timeout at most.
  ~CoordinationServer();
  CoordinationServer(const CoordinationServer&) = delete;
  CoordinationServer& operator=(const CoordinationServer&) = delete;

  int port() const { return wire_->port(); }

 private:
  CoordinationServer(Member self, std::string token, CoordinationTimes times);

  /// \pre mutex_ is held.
  void Do(CoordinatorState::Actions actions);
  void Tick();

  const CoordinationTimes times_;
  std::mutex mutex_;
  std::condition_variable changed_;
  CoordinatorState state_;
  bool is_ending_ = false;
  /// Set before other threads can access this object, and constant afterwards.
  std::unique_ptr<ServerWire> wire_;
  /// Peers may connect before it is set.
  bool has_wire_ = false;
  std::thread ticker_;
};

}  // namespace crosshatch::coordination

#endif  // CROSSHATCH_COMM_COORDINATION_COORDINATION_SERVER_H_
