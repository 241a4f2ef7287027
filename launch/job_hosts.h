// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_LAUNCH_JOB_HOSTS_H_
#define CROSSHATCH_LAUNCH_JOB_HOSTS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "crosshatch/comm/world.h"

namespace crosshatch {

/// On which machines the ranks of a job are, whatever started them.
struct JobHosts {
  /// Their names, in the order of their lowest ranks. Two machines may have one
  /// name, and count as two.
  std::vector<std::string> hosts;
  /// By rank: the index in `hosts`.
  std::vector<int> host_of;
  int host = 0;        ///< This rank's, in `hosts`.
  int local_rank = 0;  ///< This rank's place among those of its host.
  int local_size = 1;  ///< How many ranks its host has.
};

/// All ranks call it at the same places; one small exchange each time. Beside
/// it World (comm/world.h) has rank, size and this rank's device.
/// \error what went wrong with the exchange.
absl::StatusOr<JobHosts> HostsOf(World& world);

}  // namespace crosshatch

#endif  // CROSSHATCH_LAUNCH_JOB_HOSTS_H_
