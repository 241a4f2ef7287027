// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_BASE_FUTEX_H_
#define CROSSHATCH_BASE_FUTEX_H_

/// \file
/// Sleeping until a word of memory changes, as the kernel offers it. Neither
/// function says whether it failed: that is a sleep or a wake too few, which
/// the caller's bound on sleeps has to make good.

#include <atomic>
#include <chrono>
#include <cstdint>

namespace crosshatch {

/// Who may sleep on a word.
enum class FutexScope : uint8_t {
  kThisProcess,
  /// Whoever shares the memory.
  kAllProcesses,
};

/// Returns when `word` is woken after it was seen to be `value`, at once where
/// it has another value, after `longest`, or earlier.
void FutexSleep(std::atomic<uint32_t>& word, uint32_t value,
                std::chrono::nanoseconds longest, FutexScope scope);

/// Wakes up to `count` of the threads that sleep on `word`.
void FutexWake(std::atomic<uint32_t>& word, int count, FutexScope scope);

}  // namespace crosshatch

#endif  // CROSSHATCH_BASE_FUTEX_H_
