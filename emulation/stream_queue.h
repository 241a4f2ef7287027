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

/// How far a queue is, which its points share with it and may outlive it.
/// \threadsafety any thread.
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

/// The point of a queue after its first `point` tasks; of none, in the past.
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

/// Tasks in order. What cannot block runs at once where nothing is before it;
/// all else is a thread's, which is started when there is first something for
/// it. An adversarial queue gives everything to its thread, late at will.
/// \threadsafety any thread may issue.
class StreamQueue {
 public:
  using Task = absl::AnyInvocable<void()>;

  StreamQueue() = default;
  /// Waits until all is done.
  ~StreamQueue();
  StreamQueue(const StreamQueue&) = delete;
  StreamQueue& operator=(const StreamQueue&) = delete;

  /// Before anything is issued. 0: not adversarial.
  void SetSeed(uint64_t seed);

  /// \error what StartThread says; the task is not issued.
  absl::Status Issue(Task task, bool may_block);
  /// The point after all that was issued.
  QueuePoint Now();

 private:
  void Work();
  absl::Status StartWorker();

  const std::shared_ptr<QueueProgress> progress_ =
      std::make_shared<QueueProgress>();

  std::mutex issuing_;  // Held while something is issued, and so before mutex_.
  int64_t issued_ = 0;
  std::optional<AdversarialDelays> delays_;  // The worker's once it is there.

  std::mutex mutex_;  // Guards what follows.
  std::condition_variable work_;
  std::deque<Task> pending_;
  bool stopping_ = false;

  std::thread worker_;
};

}  // namespace crosshatch::emulation

#endif  // CROSSHATCH_EMULATION_STREAM_QUEUE_H_
