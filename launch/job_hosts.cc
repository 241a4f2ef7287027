// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/launch/job_hosts.h"

#include <algorithm>
#include <memory>

#include "crosshatch/base/process.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/all_ranks.h"

namespace crosshatch {

absl::StatusOr<JobHosts> HostsOf(World& world) {
  CH_ASSIGN_OR_RETURN(const std::shared_ptr<Communicator> all, AllRanks(world));
  CH_ASSIGN_OR_RETURN(const std::vector<std::string> machine_of,
                      all->Exchange(ThisMachine(), "hosts"));
  JobHosts job;
  std::vector<std::string> machines;
  std::vector<int> ranks;  // By host.
  for (int rank = 0; rank < world.size(); ++rank) {
    const std::string& machine = machine_of[static_cast<size_t>(rank)];
    const auto found = std::find(machines.begin(), machines.end(), machine);
    const auto host = static_cast<size_t>(found - machines.begin());
    if (found == machines.end()) {
      machines.push_back(machine);
      job.hosts.push_back(machine.substr(0, machine.find('\n')));
      ranks.push_back(0);
    }
    job.host_of.push_back(static_cast<int>(host));
    if (rank == world.rank()) {
      job.host = static_cast<int>(host);
      job.local_rank = ranks[host];
    }
    ++ranks[host];
  }
  job.local_size = ranks[static_cast<size_t>(job.host)];
  return job;
}

}  // namespace crosshatch
