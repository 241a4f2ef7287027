// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_BASE_WAITING_H_
#define CROSSHATCH_BASE_WAITING_H_

/// \file
/// Ways for a thread to wait: by a futex, by spinning, for a duration.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>

#include "absl/time/time.h"

namespace crosshatch {

/// Which threads may sleep on a word.
enum class FutexScope : uint8_t {
  kThisProcess,
  /// All processes that share the memory.
  kAllProcesses,
};

/// \name Sleeping until a word of memory changes, by the futex system call
/// Neither function reports failure. A failure means a missed sleep or wake-up,
/// which callers tolerate because their sleeps are bounded.
/// @{

/// Sleeps while `word` equals `value`, until FutexWake or for `longest`.
/// Returns at once if the value differs. May return early.
void FutexSleep(std::atomic<uint32_t>& word, uint32_t value,
                std::chrono::nanoseconds longest, FutexScope scope);

/// Wakes up to `count` threads that sleep on `word`.
void FutexWake(std::atomic<uint32_t>& word, int count, FutexScope scope);
/// @}

/// Hints to the processor that the thread spins.
inline void Pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// Returns `time`, at most a year, for wait_for and its like: they add it to
/// the clock's value, which overflows with infinity.
inline std::chrono::nanoseconds WaitTime(absl::Duration time) {
  return absl::ToChronoNanoseconds(std::min(time, absl::Hours(24 * 365)));
}

}  // namespace crosshatch

#endif  // CROSSHATCH_BASE_WAITING_H_
