// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/mpi/doorbell.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

namespace crosshatch::internal {
namespace {

/// Not private to the process. A failure is a wait or a wake too few, which
/// the bound on sleeps makes good.
void Futex(std::atomic<uint32_t>& word, int operation, uint32_t value,
           const timespec* timeout) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), operation, value,
          timeout, nullptr, 0);
}

}  // namespace

void Doorbell::Ring() {
  rings_.fetch_add(1);
  if (listens_.load() != 0) Futex(rings_, FUTEX_WAKE, 1, nullptr);
}

uint32_t Doorbell::Listen() {
  listens_.store(1);
  return rings_.load();
}

void Doorbell::Sleep(uint32_t heard, std::chrono::nanoseconds longest) {
  const auto seconds =
      std::chrono::duration_cast<std::chrono::seconds>(longest);
  const timespec time{.tv_sec = seconds.count(),
                      .tv_nsec = (longest - seconds).count()};
  Futex(rings_, FUTEX_WAIT, heard, &time);
  listens_.store(0);
}

}  // namespace crosshatch::internal
