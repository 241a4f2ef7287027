// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_COORDINATION_COORDINATION_SERVER_H_
#define CROSSHATCH_COMM_COORDINATION_COORDINATION_SERVER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "crosshatch/comm/coordination/coordinator_state.h"

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

  int port() const;

 private:
  class Service;
  explicit CoordinationServer(std::unique_ptr<Service> service);

  const std::unique_ptr<Service> service_;
};

}  // namespace crosshatch::coordination

#endif  // CROSSHATCH_COMM_COORDINATION_COORDINATION_SERVER_H_
