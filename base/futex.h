// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_BASE_FUTEX_H_
#define CROSSHATCH_BASE_FUTEX_H_

/// \file
/// Sleeping until a word of memory changes, by the futex system call. Neither
/// function reports failure. A failure means a missed sleep or wake-up, which
/// callers tolerate because their sleeps are bounded.

#include <atomic>
#include <chrono>
#include <cstdint>

namespace crosshatch {

/// Which threads may sleep on a word.
enum class FutexScope : uint8_t {
  kThisProcess,
  /// All processes that share the memory.
  kAllProcesses,
};

/// Sleeps while `word` equals `value`, until FutexWake or for `longest`.
/// Returns at once if the value differs. May return early.
void FutexSleep(std::atomic<uint32_t>& word, uint32_t value,
                std::chrono::nanoseconds longest, FutexScope scope);

/// Wakes up to `count` threads that sleep on `word`.
void FutexWake(std::atomic<uint32_t>& word, int count, FutexScope scope);

}  // namespace crosshatch

#endif  // CROSSHATCH_BASE_FUTEX_H_
