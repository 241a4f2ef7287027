// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_LAUNCH_RENDEZVOUS_H_
#define CROSSHATCH_LAUNCH_RENDEZVOUS_H_

/// \file
/// The rendezvous of a job's processes: the endpoint of rank 0's coordinator.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "crosshatch/launch/launch_info.h"

namespace crosshatch {

struct RendezvousEndpoint {
  std::string host;
  /// 0: rank 0 takes a free port and sends it to the others.
  int port = 0;
  /// Only processes with this token join the job.
  std::string token;
};

/// Returns the endpoint as the environment describes it; under mpirun without
/// port and token.
///
/// Without a user's token, the token is derived from the launcher's variables,
/// which others on the machine can read. It distinguishes jobs and is not a
/// secret. It contains the job's id.
RendezvousEndpoint EndpointOf(const LaunchInfo& info);

/// Returns 128 random bits as hexadecimal digits.
/// \error kInternal with the system's reason.
absl::StatusOr<std::string> RandomToken();

/// \name The endpoint as rank 0 sends it
/// @{
std::string ToText(const RendezvousEndpoint& endpoint);
/// \error kInternal if `text` is not of ToText.
absl::StatusOr<RendezvousEndpoint> EndpointFromText(const std::string& text);
/// @}

/// Returns a name or address by which other hosts reach rank 0 at `host`.
/// Systems such as Debian map a host's own name to 127.0.1.1; such a name is
/// replaced by the address of a network interface. Addresses and "localhost"
/// are returned unchanged.
std::string ReachableHost(const std::string& host);

/// Chooses ReachableHost's result. Pure.
/// \param resolved the addresses that `host` resolves to here.
/// \param interfaces the addresses of this host, the best first.
std::string ChooseHost(const std::string& host,
                       const std::vector<std::string>& resolved,
                       const std::vector<std::string>& interfaces);

/// \name The rendezvous file
/// Processes that mpirun started on one host read the endpoint from it before
/// MPI starts, so that a process that dies meanwhile is noticed and named.
/// @{

/// Returns whether the directory of `path` (LaunchInfo::rendezvous_file)
/// exists, belongs to this user and is not writable for others; equal on all
/// processes of a job.
bool CanUseRendezvousFile(const std::string& path);
/// Writes the file for this user alone, atomically.
/// \error kUnavailable naming the file and the system's reason.
absl::Status WriteRendezvousFile(const std::string& path,
                                 const std::string& text);
/// Waits for the file and returns its content.
/// \error kDeadlineExceeded naming the file.
absl::StatusOr<std::string> AwaitRendezvousFile(const std::string& path,
                                                absl::Duration timeout);
/// @}

}  // namespace crosshatch

#endif  // CROSSHATCH_LAUNCH_RENDEZVOUS_H_
