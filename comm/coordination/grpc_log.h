// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_COORDINATION_GRPC_LOG_H_
#define CROSSHATCH_COMM_COORDINATION_GRPC_LOG_H_

namespace crosshatch::coordination {

/// Keeps gRPC's own lines off stderr: what they say comes back as statuses, and
/// a job prints one error. $GRPC_VERBOSITY, where set, has them printed.
void QuietenGrpc();

}  // namespace crosshatch::coordination

#endif  // CROSSHATCH_COMM_COORDINATION_GRPC_LOG_H_
