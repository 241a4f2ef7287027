// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_CHECKPOINT_BACKGROUND_WORK_H_
#define CROSSHATCH_CHECKPOINT_BACKGROUND_WORK_H_

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>

#include "absl/status/status.h"

namespace crosshatch::checkpoint {

/// Work in parts, which run one after another on a background thread when the
/// CPU is idle. Another thread takes over parts that it needs at once, because
/// a thread of low priority might delay it for long.
/// \threadsafety All members may be called on any thread.
class BackgroundWork {
 public:
  /// \param size number of parts.
  /// \param part runs the part of a given number. Parts never run concurrently,
  ///     and none runs after an error. An exception reaches the thread that
  ///     runs the part, and is an error for the others.
  BackgroundWork(size_t size, std::function<absl::Status(size_t)> part);
  BackgroundWork(const BackgroundWork&) = delete;
  BackgroundWork& operator=(const BackgroundWork&) = delete;

  size_t size() const { return size_; }

  /// Runs the parts that no other thread takes over. Returns when all are done.
  /// \error the first error of a part.
  absl::Status RunInBackground();

  /// Takes over the first `count` parts as far as they have not begun. Returns
  /// when they are done, without waiting for later parts.
  /// \error the first error of a part.
  absl::Status RunUntil(size_t count);

 private:
  using Lock = std::unique_lock<std::mutex>;

  bool is_over() const {
    return !is_running_ && (next_ == size_ || !status_.ok());
  }
  size_t num_done() const { return next_ - (is_running_ ? 1 : 0); }
  /// Runs the next part, and releases the lock meanwhile.
  void RunNext(Lock& lock);

  const size_t size_;
  const std::function<absl::Status(size_t)> part_;
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t next_ = 0;
  bool is_running_ = false;
  /// RunUntil runs the parts before this one that have not begun.
  size_t taken_over_ = 0;
  absl::Status status_;
};

}  // namespace crosshatch::checkpoint

#endif  // CROSSHATCH_CHECKPOINT_BACKGROUND_WORK_H_
