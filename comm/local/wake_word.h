// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_LOCAL_WAKE_WORD_H_
#define CROSSHATCH_COMM_LOCAL_WAKE_WORD_H_

/// \file
/// A word that threads wait for, in the place of std::atomic's wait and notify.
///
/// libstdc++'s notify reads how many threads wait and makes no system call for
/// none. A store of the word before it, of any order but seq_cst, may then
/// still be on its way to memory: the one who notifies sees nobody who waits,
/// the one who waits sees the old value and falls asleep, and nobody wakes it
/// any more. Here a change of the word is a read-modify-write, which every
/// processor completes before it reads what comes after. And no sleep is
/// without bound: a wake that is lost all the same, whoever lost it, costs a
/// moment and not the run.

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>

#include "crosshatch/base/waiting.h"

namespace crosshatch::internal {

/// The memory and the kernel of this machine.
struct Machine {
  using Word = std::atomic<uint32_t>;
  static void Sleep(Word& word, uint32_t value) {
    // The longest sleep is what a lost wake costs.
    FutexSleep(word, value, std::chrono::milliseconds(100),
               FutexScope::kThisProcess);
  }
  static void WakeAll(Word& word) {
    FutexWake(word, INT_MAX, FutexScope::kThisProcess);
  }
};

/// \tparam System what the word lies in; another one than Machine in tests.
/// \threadsafety any thread.
template <typename System>
class BasicWakeWord {
 public:
  /// What was written before the change that is seen here may be read.
  uint32_t Get() const { return word_.load(std::memory_order_acquire); }

  /// Gives the word another value. Wake has to follow, maybe after a lock is
  /// let go.
  void Change(uint32_t to) { word_.exchange(to, std::memory_order_seq_cst); }

  /// Wakes all who wait, by a system call only where somebody does.
  void Wake() {
    if (sleepers_.load(std::memory_order_seq_cst) != 0) System::WakeAll(word_);
  }

  /// Looks for a moment whether the word differs from `old`. Short, because
  /// ranks often outnumber cores: who spins then keeps the other from coming.
  bool SpinWhile(uint32_t old) const {
    for (int i = 0; i < 100; ++i) {
      if (Get() != old) return true;
      Pause();
    }
    return false;
  }

  /// Returns when the word differs from `old`.
  void WaitWhile(uint32_t old) {
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    while (word_.load(std::memory_order_seq_cst) == old) {
      System::Sleep(word_, old);
    }
    sleepers_.fetch_sub(1, std::memory_order_relaxed);
  }

 private:
  // On one cache line of their own: whoever changes the first reads the second.
  alignas(64) typename System::Word word_{0};
  typename System::Word sleepers_{0};
};

using WakeWord = BasicWakeWord<Machine>;

/// A barrier for n threads, again and again.
class ThreadBarrier {
 public:
  explicit ThreadBarrier(int n) : n_(n), missing_(n) {}

  /// Returns when all n threads have called it.
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
