// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/base/thread_pool.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/error_context.h"
#include "crosshatch/base/threads.h"

namespace crosshatch {
namespace {

// Kernels follow each other closely, and waking a sleeping thread takes longer
// than a small one runs. Most gaps between kernels that have several parts are
// shorter than this.
constexpr std::chrono::microseconds kSpinBeforeSleep{500};

// Yielding instead of pausing leaves the core to other ranks where there are
// more threads than cores.
template <typename Predicate>
bool SpinUntil(Predicate predicate) {
  const auto end = std::chrono::steady_clock::now() + kSpinBeforeSleep;
  do {
    for (int i = 0; i < 8; ++i) {
      if (predicate()) return true;
      std::this_thread::yield();
    }
  } while (std::chrono::steady_clock::now() < end);
  return predicate();
}

}  // namespace

ThreadPool::ThreadPool(int width)
    : width_(width), taken_(static_cast<size_t>(width)) {
  CH_CHECK_GE(width, 1) << "threads of a pool";
  threads_.reserve(static_cast<size_t>(width - 1));
  for (int i = 1; i < width; ++i) {
    absl::StatusOr<std::thread> thread = StartThread(
        absl::StrCat("thread ", i, " of a pool of ", width, " threads"),
        [this, i] { Work(i); });
    if (!thread.ok()) {
      status_ = thread.status();
      width_ = i;  // Those that run read it with their first work.
      break;
    }
    threads_.push_back(*std::move(thread));
  }
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  start_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::ParallelFor(int64_t parts,
                             absl::FunctionRef<void(int64_t)> body) {
  if (width_ == 1 || parts <= 1 || IsNestedCall()) {
    for (int64_t part = 0; part < parts; ++part) body(part);
    return;
  }
  std::lock_guard<std::mutex> turn(caller_mutex_);
  caller_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  parts_ = parts;
  // A failure on a worker is reported with the context of the waiting caller.
  const ErrorContext* const context = ErrorContext::Innermost();
  const auto in_context = [&body, context](int64_t part) {
    const AdoptedErrorContext here(context);
    body(part);
  };
  const absl::FunctionRef<void(int64_t)> body_in_context = in_context;
  body_ = &body_in_context;
  running_.store(width_ - 1, std::memory_order_relaxed);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    generation_.fetch_add(1, std::memory_order_release);
  }
  start_.notify_all();

  RunShare(0);
  const int64_t generation = generation_.load(std::memory_order_relaxed);
  for (int worker = 1; worker < width_; ++worker) {
    if (TakeShare(worker, generation)) {
      RunShare(worker);
      running_.fetch_sub(1, std::memory_order_relaxed);
    }
  }

  const auto all_done = [this] {
    return running_.load(std::memory_order_acquire) == 0;
  };
  if (!SpinUntil(all_done)) {
    std::unique_lock<std::mutex> lock(mutex_);
    done_.wait(lock, all_done);
  }
  body_ = nullptr;
  caller_.store(std::thread::id(), std::memory_order_relaxed);
}

void ThreadPool::Work(int thread_index) {
  int64_t seen = 0;
  const auto is_new = [this, &seen] {
    return generation_.load(std::memory_order_acquire) != seen;
  };
  while (true) {
    if (!SpinUntil(is_new)) {
      std::unique_lock<std::mutex> lock(mutex_);
      start_.wait(lock, [&] { return stopping_ || is_new(); });
      if (!is_new()) return;
    }
    // The caller may have taken the shares of several calls meanwhile.
    seen = generation_.load(std::memory_order_acquire);
    if (!TakeShare(thread_index, seen)) continue;
    RunShare(thread_index);
    if (running_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      // Holding the lock ensures that the caller is not between its check and
      // its wait.
      { std::lock_guard<std::mutex> lock(mutex_); }
      done_.notify_one();
    }
  }
}

bool ThreadPool::TakeShare(int thread_index, int64_t generation) {
  // A call ends when all its shares are taken. So a late worker finds its share
  // taken and none of an earlier call.
  int64_t before = generation - 1;
  return taken_[static_cast<size_t>(thread_index)]
      .generation.compare_exchange_strong(before, generation,
                                          std::memory_order_acq_rel);
}

void ThreadPool::RunShare(int thread_index) {
  for (int64_t part = thread_index; part < parts_; part += width_) {
    (*body_)(part);
  }
}

bool ThreadPool::IsNestedCall() const {
  const std::thread::id self = std::this_thread::get_id();
  if (caller_.load(std::memory_order_relaxed) == self) return true;
  for (const std::thread& thread : threads_) {
    if (thread.get_id() == self) return true;
  }
  return false;
}

}  // namespace crosshatch
