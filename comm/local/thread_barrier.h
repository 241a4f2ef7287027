// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_LOCAL_THREAD_BARRIER_H_
#define CROSSHATCH_COMM_LOCAL_THREAD_BARRIER_H_

/// \file
/// Waiting of threads that are all known to come.

#include <atomic>
#include <cstdint>

#include "crosshatch/comm/local/wake_word.h"

namespace crosshatch::internal {

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

#endif  // CROSSHATCH_COMM_LOCAL_THREAD_BARRIER_H_
