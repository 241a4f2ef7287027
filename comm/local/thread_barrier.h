// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_LOCAL_THREAD_BARRIER_H_
#define CROSSHATCH_COMM_LOCAL_THREAD_BARRIER_H_

/// \file
/// Waiting of threads that are all known to come.

#include <atomic>
#include <cstdint>

namespace crosshatch::internal {

/// Tells the processor that the thread spins.
inline void Pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// Looks for a moment whether `word` differs from `old`. Short, because ranks
/// often outnumber cores: who spins then keeps the other from coming.
inline bool SpinWhileEqual(const std::atomic<uint32_t>& word, uint32_t old) {
  for (int i = 0; i < 100; ++i) {
    if (word.load(std::memory_order_acquire) != old) return true;
    Pause();
  }
  return false;
}

/// A barrier for n threads, again and again.
class ThreadBarrier {
 public:
  explicit ThreadBarrier(int n) : n_(n), missing_(n) {}

  /// Returns when all n threads have called it.
  void ArriveAndWait() {
    const uint32_t round = round_.load(std::memory_order_relaxed);
    if (missing_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      missing_.store(n_, std::memory_order_relaxed);
      round_.store(round + 1, std::memory_order_release);
      round_.notify_all();
      return;
    }
    if (!SpinWhileEqual(round_, round)) {
      round_.wait(round, std::memory_order_acquire);
    }
  }

 private:
  const int n_;
  alignas(64) std::atomic<int> missing_;
  alignas(64) std::atomic<uint32_t> round_{0};
};

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_COMM_LOCAL_THREAD_BARRIER_H_
