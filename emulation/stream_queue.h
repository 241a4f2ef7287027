// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_EMULATION_STREAM_QUEUE_H_
#define CROSSHATCH_EMULATION_STREAM_QUEUE_H_

/// \file
/// The queue behind an emulated stream.

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "crosshatch/base/adversarial_delays.h"

namespace crosshatch::emulation {

/// The progress of a queue. Its points share it and may outlive the queue.
/// \threadsafety Any thread may call any function.
class QueueProgress {
 public:
  bool Reached(int64_t point) const;
  void BlockUntil(int64_t point);
  void Advance();

 private:
  mutable std::mutex mutex_;
  std::condition_variable reached_;
  int64_t done_ = 0;
};

/// The point of a queue after its first `point` tasks. Without a queue it is in
/// the past.
struct QueuePoint {
  std::shared_ptr<QueueProgress> progress;
  int64_t point = 0;

  bool Reached() const {
    return progress == nullptr || progress->Reached(point);
  }
  void Block() const {
    if (progress != nullptr) progress->BlockUntil(point);
  }
};

/// A queue of tasks in order. A task that cannot block runs at once if the
/// queue is empty. Others run on a thread that is started for the first of
/// them. An adversarial queue runs everything on its thread, with random
/// delays.
/// \threadsafety Any thread may issue.
class StreamQueue {
 public:
  using Task = absl::AnyInvocable<void()>;

  StreamQueue() = default;
  /// Waits for all tasks.
  ~StreamQueue();
  StreamQueue(const StreamQueue&) = delete;
  StreamQueue& operator=(const StreamQueue&) = delete;

  /// Sets the seed of delays before anything is issued. 0 is not adversarial.
  void SetSeed(uint64_t seed);

  /// \error any error of StartThread; the task is not issued.
  absl::Status Issue(Task task, bool may_block);
  /// Returns the point after all issued tasks.
  QueuePoint Now();

 private:
  void Work();
  absl::Status StartWorker();

  const std::shared_ptr<QueueProgress> progress_ =
      std::make_shared<QueueProgress>();

  std::mutex issuing_;  // Held while issuing; locked before mutex_.
  int64_t issued_ = 0;
  std::optional<AdversarialDelays>
      delays_;  // Owned by the worker once it runs.

  std::mutex mutex_;  // Guards what follows.
  std::condition_variable work_;
  std::deque<Task> pending_;
  bool stopping_ = false;

  std::thread worker_;
};

}  // namespace crosshatch::emulation

#endif  // CROSSHATCH_EMULATION_STREAM_QUEUE_H_
