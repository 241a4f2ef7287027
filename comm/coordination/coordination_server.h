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
  /// \param self rank 0, which is to join as a client too.
  /// \param token whoever does not know it is sent away.
  /// \error kUnavailable where it cannot listen; kResourceExhausted.
  static absl::StatusOr<std::unique_ptr<CoordinationServer>> Start(
      const std::string& host, int port, Member self, std::string token,
      CoordinationTimes times);

  /// When the job is over it first waits for the ranks to leave, so that all
  /// have been told, for as long as silence may last.
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
  /// Set while no thread but the maker's knows this object, and from then on
  /// read only.
  std::unique_ptr<ServerWire> wire_;
  /// Peers may come before it is there.
  bool has_wire_ = false;
  std::thread ticker_;
};

}  // namespace crosshatch::coordination

#endif  // CROSSHATCH_COMM_COORDINATION_COORDINATION_SERVER_H_
