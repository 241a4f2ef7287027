// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_CHECKPOINT_PATIENT_WORK_H_
#define CROSSHATCH_CHECKPOINT_PATIENT_WORK_H_

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>

#include "absl/status/status.h"

namespace crosshatch::checkpoint {

/// Parts of work, one after another, that a thread does when the cores have
/// nothing better to do, and of which another thread takes over what it cannot
/// wait for any longer: a thread of low priority would let it wait too long.
/// \threadsafety all members may be called from any thread.
class PatientWork {
 public:
  /// \param part does the part of that number; after its first error none is
  ///     done any more. Parts never run at once. What it throws comes to the
  ///     thread that did it, and is an error to the others.
  PatientWork(size_t size, std::function<absl::Status(size_t)> part);
  PatientWork(const PatientWork&) = delete;
  PatientWork& operator=(const PatientWork&) = delete;

  size_t size() const { return size_; }

  /// Does what nobody takes over. Returns once all is done.
  /// \error the first error of a part
  absl::Status RunPatiently();

  /// Takes over what is not begun of the first `count` parts. Returns once they
  /// are done, without waiting for those after them.
  /// \error as RunPatiently
  absl::Status RunUntil(size_t count);

 private:
  using Lock = std::unique_lock<std::mutex>;

  bool is_over() const {
    return !is_running_ && (next_ == size_ || !status_.ok());
  }
  size_t num_done() const { return next_ - (is_running_ ? 1 : 0); }
  /// Does the next part, without the lock meanwhile.
  void RunNext(Lock& lock);

  const size_t size_;
  const std::function<absl::Status(size_t)> part_;
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t next_ = 0;
  bool is_running_ = false;
  /// Of those before it somebody else does what is not begun.
  size_t taken_over_ = 0;
  absl::Status status_;
};

}  // namespace crosshatch::checkpoint

#endif  // CROSSHATCH_CHECKPOINT_PATIENT_WORK_H_
