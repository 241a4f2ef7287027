// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/base/threads.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"

namespace crosshatch {

absl::StatusOr<std::thread> StartThread(std::string_view what,
                                        absl::AnyInvocable<void()> body) {
  try {
    return std::thread(std::move(body));
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "cannot start ", std::string(what), ": ", error.code().message()));
  }
}

namespace {

static_assert(std::atomic<uint32_t>::is_always_lock_free);

void Call(std::atomic<uint32_t>& word, int operation, uint32_t value,
          const timespec* timeout, FutexScope scope) {
  if (scope == FutexScope::kThisProcess) operation |= FUTEX_PRIVATE_FLAG;
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), operation, value,
          timeout, nullptr, 0);
}

}  // namespace

void FutexSleep(std::atomic<uint32_t>& word, uint32_t value,
                std::chrono::nanoseconds longest, FutexScope scope) {
  const auto seconds =
      std::chrono::duration_cast<std::chrono::seconds>(longest);
  const timespec time{.tv_sec = seconds.count(),
                      .tv_nsec = (longest - seconds).count()};
  Call(word, FUTEX_WAIT, value, &time, scope);
}

void FutexWake(std::atomic<uint32_t>& word, int count, FutexScope scope) {
  Call(word, FUTEX_WAKE, static_cast<uint32_t>(count), nullptr, scope);
}

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
