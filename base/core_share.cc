// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/base/core_share.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>

namespace crosshatch {

CoreSet AllowedCores() {
  CoreSet cores;
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) == 0) {
    for (size_t core = 0; core < cores.size(); ++core) {
      cores[core] = CPU_ISSET(core, &allowed);
    }
    return cores;
  }
  const auto machine =
      static_cast<size_t>(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN)));
  for (size_t core = 0; core < std::min(machine, cores.size()); ++core) {
    cores[core] = true;
  }
  return cores;
}

int CoreShare(int sharers) {
  return std::max(1, static_cast<int>(AllowedCores().count()) / sharers);
}

int CoreShare(const std::vector<CoreSet>& sharers, size_t self) {
  double share = 0;
  for (size_t core = 0; core < sharers[self].size(); ++core) {
    if (!sharers[self][core]) continue;
    share += 1.0 / static_cast<double>(std::count_if(
                       sharers.begin(), sharers.end(),
                       [core](const CoreSet& each) { return each[core]; }));
  }
  // The sum of three thirds is a little less than one.
  return std::max(1, static_cast<int>(share + 1e-6));
}

}  // namespace crosshatch
