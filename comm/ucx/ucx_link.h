// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_UCX_UCX_LINK_H_
#define CROSSHATCH_COMM_UCX_UCX_LINK_H_

/// \file
/// Messages between the processes of a job by UCX: shared memory on one host,
/// TCP or RDMA between hosts. A broken connection is an error only if no other
/// failure of the job is reported meanwhile: the coordinator finds dead ranks.

#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "crosshatch/comm/mpi/link.h"
#include "crosshatch/comm/world.h"

namespace crosshatch::internal {

/// Opens this process's end of a new link. Called by all processes of `join`,
/// which exchange what UCX needs by `join.gather`.
///
/// Where all processes are on one host and share a network namespace, nothing
/// listens on the network, except on loopback if their users or namespaces of
/// processes differ. Elsewhere UCX uses the interface by which
/// `join.coordinator_host` is reached, and RDMA devices. UCX_TLS and
/// UCX_NET_DEVICES, if set, come first.
/// \param ranks the processes that the link joins, from rank 0 on; 0: all. To
///     the others the link is of no use.
/// \param failure is called again and again; not OK once some process will not
///     come.
/// \error kNotFound without UCX; kFailedPrecondition if processes have
///     different versions of it; kDeadlineExceeded if not all are connected
///     within `timeout`; the errors of `join.gather` and `failure`.
absl::StatusOr<std::unique_ptr<Link>> OpenUcxLink(
    const UcxJoin& join, int ranks, absl::Duration timeout,
    absl::FunctionRef<absl::Status()> failure);

/// Closes a link of OpenUcxLink after a job that all processes have ended
/// together. Waits up to `patience` until sent data have left this process.
/// Destroying a link without this drops messages in flight.
void CloseUcxLink(std::unique_ptr<Link> link, absl::Duration patience);

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_COMM_UCX_UCX_LINK_H_
