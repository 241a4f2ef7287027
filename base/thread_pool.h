// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_BASE_THREAD_POOL_H_
#define CROSSHATCH_BASE_THREAD_POOL_H_

/// \file
/// ThreadPool: the intra-op thread pool of a rank.

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

namespace crosshatch {

/// Runs the parts of one kernel on a fixed set of threads.
///
/// Parts are assigned statically (part p is of thread p % width), so that
/// kernels find in a core's cache what those before left there. The caller runs
/// the parts of threads that have not begun once its own are done, since waking
/// a thread may take longer than a small kernel. How a kernel cuts its work
/// into parts depends on the shape alone, so results do not depend on the
/// pool's width.
///
/// \threadsafety ParallelFor may be called by one thread at a time; calls from
///     several threads (the compute stream and a side stream) take turns.
///     A nested call runs its parts inline.
class ThreadPool {
 public:
  /// \param width number of threads, including the caller; at least 1. Width 1
  ///     starts no thread and runs everything inline. If the system cannot
  ///     start all threads, the pool is narrower and status() reports it.
  explicit ThreadPool(int width);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int width() const { return width_; }
  /// OK, or kResourceExhausted if the pool is narrower than requested.
  const absl::Status& status() const { return status_; }

  /// Calls body(part) for each part in [0, parts); returns when all are done.
  void ParallelFor(int64_t parts, absl::FunctionRef<void(int64_t)> body);

 private:
  void Work(int thread_index);
  bool TakeShare(int thread_index, int64_t generation);
  void RunShare(int thread_index);
  bool IsNestedCall() const;

  int width_;
  absl::Status status_;
  // Held for a whole ParallelFor: callers take turns.
  std::mutex caller_mutex_;
  std::atomic<std::thread::id> caller_{};

  // The call in progress. Written before generation_ goes up and read by
  // workers that have taken their share of it, until running_ is 0.
  int64_t parts_ = 0;
  const absl::FunctionRef<void(int64_t)>* body_ = nullptr;
  std::atomic<int64_t> generation_{0};
  // Workers whose share is not done.
  std::atomic<int> running_{0};
  // The last call of which somebody took a worker's share.
  struct alignas(64) Taken {
    std::atomic<int64_t> generation{0};
  };
  std::vector<Taken> taken_;

  // For threads that gave up spinning.
  std::mutex mutex_;
  std::condition_variable start_;
  std::condition_variable done_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace crosshatch

#endif  // CROSSHATCH_BASE_THREAD_POOL_H_
