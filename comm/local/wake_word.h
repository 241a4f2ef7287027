// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_LOCAL_WAKE_WORD_H_
#define CROSSHATCH_COMM_LOCAL_WAKE_WORD_H_

/// \file
/// A word that threads wait for, instead of std::atomic's wait and notify.
///
/// libstdc++'s notify reads how many threads wait, and makes no system call if
/// there are none. A store before it, of any order but seq_cst, may then not
/// have reached memory yet: the notifier sees no waiter, the waiter sees the
/// old value and sleeps, and no thread wakes it any more. Here a change of the
/// word is a read-modify-write, which every processor completes before it reads
/// what comes after. And every sleep is bounded, so a lost notification costs a
/// moment and not the run.

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <thread>

#include "crosshatch/base/threads.h"

namespace crosshatch::internal {

/// The memory and the kernel of this machine.
struct Machine {
  using Word = std::atomic<uint32_t>;
  static void Sleep(Word& word, uint32_t value) {
    // A lost notification costs the longest sleep.
    FutexSleep(word, value, std::chrono::milliseconds(100),
               FutexScope::kThisProcess);
  }
  static void WakeAll(Word& word) {
    FutexWake(word, INT_MAX, FutexScope::kThisProcess);
  }
  /// Yields the core; returns for how long.
  static std::chrono::nanoseconds Yield() {
    const auto begin = std::chrono::steady_clock::now();
    std::this_thread::yield();
    return std::chrono::steady_clock::now() - begin;
  }
};

/// \tparam System owns the word; tests replace Machine.
/// \threadsafety any thread.
template <typename System>
class BasicWakeWord {
 public:
  /// Returns the word. Writes before its change may be read.
  uint32_t Get() const { return word_.load(std::memory_order_acquire); }

  /// Changes the word. The caller then calls Wake, maybe after it has released
  /// a lock.
  void Change(uint32_t to) { word_.exchange(to, std::memory_order_seq_cst); }

  /// Wakes all waiters; makes a system call only if there are any.
  void Wake() {
    if (sleepers_.load(std::memory_order_seq_cst) != 0) System::WakeAll(word_);
  }

  /// Checks for a moment whether the word differs from `old`. The moment is
  /// short because ranks often outnumber cores. Then yields the core, which
  /// costs less than to sleep and be woken. After a yield that took long, which
  /// gave a time slice to another program, many calls do not yield.
  bool SpinWhile(uint32_t old) {
    for (int i = 0; i < 100; ++i) {
      if (Get() != old) return true;
      Pause();
    }
    const int without = calls_without_yield_.load(std::memory_order_relaxed);
    if (without > 0) {
      calls_without_yield_.store(without - 1, std::memory_order_relaxed);
      return false;
    }
    for (int i = 0; i < 16; ++i) {
      const bool was_long = System::Yield() > std::chrono::milliseconds(1);
      if (was_long) calls_without_yield_.store(1000, std::memory_order_relaxed);
      if (Get() != old) return true;
      if (was_long) return false;
    }
    return false;
  }

  /// Waits until the word differs from `old`.
  void WaitWhile(uint32_t old) {
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    while (word_.load(std::memory_order_seq_cst) == old) {
      System::Sleep(word_, old);
    }
    sleepers_.fetch_sub(1, std::memory_order_relaxed);
  }

 private:
  // On one cache line: a thread that changes the first reads the second.
  alignas(64) typename System::Word word_{0};
  typename System::Word sleepers_{0};
  std::atomic<int> calls_without_yield_{0};
};

using WakeWord = BasicWakeWord<Machine>;

/// A barrier of n threads, which is used again and again.
class ThreadBarrier {
 public:
  explicit ThreadBarrier(int n) : n_(n), missing_(n) {}

  /// Waits until all n threads have called it.
  void ArriveAndWait() {
    const uint32_t round = round_.Get();
    if (missing_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      missing_.store(n_, std::memory_order_relaxed);
      round_.Change(round + 1);
      round_.Wake();
      return;
    }
    if (!round_.SpinWhile(round)) round_.WaitWhile(round);
  }

 private:
  const int n_;
  alignas(64) std::atomic<int> missing_;
  WakeWord round_;
};

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_COMM_LOCAL_WAKE_WORD_H_
