// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/base/waiting.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

namespace crosshatch {
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

}  // namespace crosshatch
