// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/checkpoint/background_work.h"

#include <algorithm>
#include <utility>

#include "absl/cleanup/cleanup.h"

namespace crosshatch::checkpoint {

BackgroundWork::BackgroundWork(size_t size,
                               std::function<absl::Status(size_t)> part)
    : size_(size), part_(std::move(part)) {}

void BackgroundWork::RunNext(Lock& lock) {
  const size_t part = next_++;
  is_running_ = true;
  absl::Status status =
      absl::InternalError("background work threw an exception");
  const absl::Cleanup end = [&] {
    lock.lock();
    is_running_ = false;
    if (status_.ok()) status_ = status;
    changed_.notify_all();
  };
  lock.unlock();
  status = part_(part);
}

absl::Status BackgroundWork::RunInBackground() {
  Lock lock(mutex_);
  while (!is_over()) {
    if (is_running_ || next_ < taken_over_) {
      changed_.wait(lock);
    } else {
      RunNext(lock);
    }
  }
  return status_;
}

absl::Status BackgroundWork::RunUntil(size_t count) {
  Lock lock(mutex_);
  taken_over_ = std::max(taken_over_, count);
  while (!is_over() && num_done() < count) {
    if (is_running_) {
      changed_.wait(lock);
    } else {
      RunNext(lock);
    }
  }
  return status_;
}

}  // namespace crosshatch::checkpoint
