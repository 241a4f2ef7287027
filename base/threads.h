// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_BASE_THREADS_H_
#define CROSSHATCH_BASE_THREADS_H_

/// \file
/// Starts threads, lets them wait by a futex, by spinning or for a duration,
/// and returns how many of them a process or rank should have.

#include <algorithm>
#include <atomic>
#include <bitset>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace crosshatch {

/// Starts a thread that runs `body`. All threads start here, because the
/// constructor of std::thread throws if the system has none left.
/// \param what names the thread in the error, e.g. "the thread of rank 3".
/// \error kResourceExhausted with the system's reason.
absl::StatusOr<std::thread> StartThread(std::string_view what,
                                        absl::AnyInvocable<void()> body);

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

/// Cores of a machine, by number. Trivially copyable, so that processes can
/// share it in memory.
using CoreSet = std::bitset<1024>;

/// Returns the cores that the calling thread may run on, which mpirun, taskset
/// and others restrict. Returns all cores if the system does not report them.
CoreSet AllowedCores();

/// Returns the threads for each of `sharers` (at least 1) that share the cores
/// of the calling thread: cores / sharers, at least 1.
int CoreShare(int sharers);

/// Returns the threads for the sharer at index `self`, at least 1, if each has
/// its own set of cores. A core in several sets is divided equally among them.
int CoreShare(const std::vector<CoreSet>& sharers, size_t self);

}  // namespace crosshatch

#endif  // CROSSHATCH_BASE_THREADS_H_
