// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/examples/machine_memory.h"

#include <sys/resource.h>
#include <sys/sysinfo.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <limits>

namespace crosshatch::examples {
namespace {

// Returns the number in a system file; the maximum if there is none.
int64_t LimitIn(const char* path) {
  std::ifstream file(path);
  int64_t limit = 0;
  return file >> limit ? limit : std::numeric_limits<int64_t>::max();
}

}  // namespace

int64_t MachineMemory() {
  struct sysinfo info;
  int64_t memory = std::numeric_limits<int64_t>::max();
  if (sysinfo(&info) == 0) {
    memory = static_cast<int64_t>(info.totalram + info.totalswap) *
             static_cast<int64_t>(info.mem_unit);
  }
  for (const char* path : {"/sys/fs/cgroup/memory.max",
                           "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    memory = std::min(memory, LimitIn(path));
  }
  for (const auto resource : {RLIMIT_AS, RLIMIT_DATA}) {
    struct rlimit limit;
    if (getrlimit(resource, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
      memory = std::min(memory, static_cast<int64_t>(limit.rlim_cur));
    }
  }
  return memory;
}

}  // namespace crosshatch::examples
