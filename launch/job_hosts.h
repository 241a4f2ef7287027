// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_LAUNCH_JOB_HOSTS_H_
#define CROSSHATCH_LAUNCH_JOB_HOSTS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "crosshatch/comm/world.h"

namespace crosshatch {

/// The machines of a job's ranks, with any launcher.
struct JobHosts {
  /// The machines' names, in the order of their lowest ranks. Two machines with
  /// equal names are two entries.
  std::vector<std::string> hosts;
  /// Indices in `hosts`, by rank.
  std::vector<int> host_of;
  int host = 0;        ///< This rank's index in `hosts`.
  int local_rank = 0;  ///< This rank's index among its host's ranks.
  int local_size = 1;  ///< The number of its host's ranks.
};

/// Exchanges the machines of all ranks. Called by all ranks of `world`.
/// \error that of the exchange.
absl::StatusOr<JobHosts> HostsOf(World& world);

}  // namespace crosshatch

#endif  // CROSSHATCH_LAUNCH_JOB_HOSTS_H_
