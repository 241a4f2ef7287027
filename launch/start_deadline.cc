// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/launch/start_deadline.h"

#include <utility>

#include "crosshatch/base/process.h"
#include "crosshatch/base/start_thread.h"
#include "crosshatch/base/waiting.h"

namespace crosshatch {

StartDeadline::StartDeadline(absl::Duration time,
                             std::function<void()> report) {
  auto watch = StartThread(
      "the watch over the start", [this, time, report = std::move(report)] {
        std::unique_lock lock(mutex_);
        changed_.wait_for(lock, WaitTime(time),
                          [this] { return is_over_ || is_hopeless_; });
        if (is_over_) return;
        lock.unlock();
        report();
        // Destructors could wait forever.
        EndProcess("");
      });
  // Without a free thread the start fails anyway.
  if (watch.ok()) watch_ = *std::move(watch);
}

void StartDeadline::Expire() {
  std::lock_guard lock(mutex_);
  is_hopeless_ = true;
  changed_.notify_one();
}

StartDeadline::~StartDeadline() {
  {
    std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  changed_.notify_one();
  if (watch_.joinable()) watch_.join();
}

}  // namespace crosshatch
