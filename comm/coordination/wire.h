// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_COORDINATION_WIRE_H_
#define CROSSHATCH_COMM_COORDINATION_WIRE_H_

#include <chrono>
#include <string>

#include "absl/time/time.h"

namespace crosshatch::coordination {

/// Returns a time to measure waits, which does not change when the machine's
/// clock is set. Its zero means nothing.
inline absl::Time SteadyNow() {
  return absl::UnixEpoch() +
         absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
}

/// Silences gRPC's log on stderr, because errors are returned as statuses and a
/// job prints one error. $GRPC_VERBOSITY, if set, enables it.
void QuietenGrpc();

/// The beginning of a host that is a Unix socket in the abstract namespace. The
/// rest is its name; it has no port. gRPC has the same syntax.
inline constexpr char kAbstractSocket[] = "unix-abstract:";

/// Returns "HOST:PORT", or `host` alone if it is an abstract socket.
std::string AddressText(const std::string& host, int port);

}  // namespace crosshatch::coordination

#endif  // CROSSHATCH_COMM_COORDINATION_WIRE_H_
