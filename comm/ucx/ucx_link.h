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
/// which exchange UCX's addresses by `join.gather`.
///
/// If all processes are on one host and share a network namespace, nothing
/// listens on the network, except on loopback if their users or namespaces of
/// processes differ. Otherwise UCX uses the interface by which
/// `join.coordinator_host` is reached, and RDMA devices. UCX_TLS and
/// UCX_NET_DEVICES override this.
/// \param ranks the number of processes of the link, from rank 0 on; 0: all.
///     The others cannot use the link.
/// \param failure called repeatedly; not OK if a process will not come
/// \error kNotFound without UCX; kFailedPrecondition if processes have
///     different versions of it; kDeadlineExceeded if not all are connected
///     within `timeout`; the errors of `join.gather` and `failure`.
absl::StatusOr<std::unique_ptr<Link>> OpenUcxLink(
    const UcxJoin& join, int ranks, absl::Duration timeout,
    absl::FunctionRef<absl::Status()> failure);

/// Closes a link of OpenUcxLink after a job that all processes have ended
/// together. Waits up to `timeout` until sent data have left this process.
/// Destroying a link without this drops messages in flight.
void CloseUcxLink(std::unique_ptr<Link> link, absl::Duration timeout);

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_COMM_UCX_UCX_LINK_H_
