// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_COORDINATION_WIRE_H_
#define CROSSHATCH_COMM_COORDINATION_WIRE_H_

/// \file
/// The transport of messages between ranks and the coordinator. The functions
/// at the end are gRPC's; nothing else depends on it.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "crosshatch/comm/coordination/messages.pb.h"

namespace crosshatch::coordination {

/// Returns a time to measure waits, which does not change when the machine's
/// clock is set. Its zero means nothing.
inline absl::Time SteadyNow() {
  return absl::UnixEpoch() +
         absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
}

/// The coordinator's end of all connections. Destroying it closes them and
/// frees the port; no event follows.
/// \threadsafety all members may be called from any thread, events included.
class ServerWire {
 public:
  /// Called on threads of the wire, for one peer in order: connected once,
  /// received any number of times, broken once.
  struct Events {
    std::function<void(int64_t peer)> connected;
    std::function<void(int64_t peer, const ClientMessage&)> received;
    std::function<void(int64_t peer)> broken;
  };

  virtual ~ServerWire() = default;
  virtual int port() const = 0;
  /// Queues a message; ignored if the peer is broken.
  virtual void Send(int64_t peer, ServerMessage message) = 0;
  /// Ends the connection once all queued messages have been written.
  virtual void Close(int64_t peer) = 0;
};

/// A rank's end of its connection. Destroying it closes the connection; no
/// event follows.
/// \threadsafety all members may be called from any thread, events included.
class ClientWire {
 public:
  struct Events {
    std::function<void(const ServerMessage&)> received;
    /// Called once; nothing is received after it.
    std::function<void()> broken;
  };

  virtual ~ClientWire() = default;
  virtual void Send(ClientMessage message) = 0;
};

/// Silences gRPC's log on stderr, because errors are returned as statuses and a
/// job prints one error. $GRPC_VERBOSITY, if set, enables it.
void QuietenGrpc();

/// Listens on the addresses of `host` alone.
/// \param port 0: any that is free.
/// \error kUnavailable if the port is not available.
absl::StatusOr<std::unique_ptr<ServerWire>> ListenGrpc(
    const std::string& host, int port, ServerWire::Events events);

/// Connects to `host`, and retries until a process listens there. Resolving a
/// name, or a host's second address, may take several attempts.
/// \param still_hopes called once in a second; false ends it. Null: true.
/// \error kDeadlineExceeded; kCancelled if `still_hopes` has returned false.
absl::StatusOr<std::unique_ptr<ClientWire>> ConnectGrpc(
    const std::string& host, int port, absl::Duration timeout,
    const std::function<bool()>& still_hopes, ClientWire::Events events);

}  // namespace crosshatch::coordination

#endif  // CROSSHATCH_COMM_COORDINATION_WIRE_H_
