// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/mpi/doorbell.h"

#include "crosshatch/base/waiting.h"

namespace crosshatch::internal {

void Doorbell::Ring() {
  rings_.fetch_add(1);
  if (listens_.load() != 0) {
    FutexWake(rings_, 1, FutexScope::kAllProcesses);
  }
}

uint32_t Doorbell::Listen() {
  listens_.store(1);
  return rings_.load();
}

void Doorbell::Sleep(uint32_t heard, std::chrono::nanoseconds longest) {
  FutexSleep(rings_, heard, longest, FutexScope::kAllProcesses);
  listens_.store(0);
}

}  // namespace crosshatch::internal
