// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/emulation/stream_queue.h"

#include <utility>

#include "absl/status/statusor.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/threads.h"

namespace crosshatch::emulation {

bool QueueProgress::Reached(int64_t point) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return done_ >= point;
}

void QueueProgress::BlockUntil(int64_t point) {
  std::unique_lock<std::mutex> lock(mutex_);
  reached_.wait(lock, [&] { return done_ >= point; });
}

void QueueProgress::Advance() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ++done_;
  }
  reached_.notify_all();
}

StreamQueue::~StreamQueue() {
  Now().Block();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  work_.notify_one();
  if (worker_.joinable()) worker_.join();
}

void StreamQueue::SetSeed(uint64_t seed) {
  std::lock_guard<std::mutex> issue(issuing_);
  CH_CHECK_EQ(issued_, 0) << "a seed for a stream that is in use";
  delays_.reset();
  if (seed != 0) delays_.emplace(seed, /*rank=*/0, "");
}

absl::Status StreamQueue::Issue(Task task, bool may_block) {
  std::lock_guard<std::mutex> issue(issuing_);
  if (!may_block && !delays_.has_value() && progress_->Reached(issued_)) {
    ++issued_;
    task();
    progress_->Advance();
    return absl::OkStatus();
  }
  if (!worker_.joinable()) {
    absl::Status started = StartWorker();
    if (!started.ok()) return started;
  }
  ++issued_;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    pending_.push_back(std::move(task));
  }
  work_.notify_one();
  return absl::OkStatus();
}

QueuePoint StreamQueue::Now() {
  std::lock_guard<std::mutex> issue(issuing_);
  return {progress_, issued_};
}

absl::Status StreamQueue::StartWorker() {
  absl::StatusOr<std::thread> worker =
      StartThread("the thread of an emulated stream", [this] { Work(); });
  if (!worker.ok()) return worker.status();
  worker_ = *std::move(worker);
  return absl::OkStatus();
}

void StreamQueue::Work() {
  for (;;) {
    Task task;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      work_.wait(lock, [this] { return !pending_.empty() || stopping_; });
      if (pending_.empty()) return;
      task = std::move(pending_.front());
      pending_.pop_front();
    }
    if (delays_.has_value()) delays_->BeforeTask();
    task();
    task = nullptr;  // Destroy its captures before notifying.
    progress_->Advance();
  }
}

}  // namespace crosshatch::emulation
