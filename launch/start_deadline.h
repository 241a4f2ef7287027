// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_LAUNCH_START_DEADLINE_H_
#define CROSSHATCH_LAUNCH_START_DEADLINE_H_

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "absl/time/time.h"

namespace crosshatch {

/// Ends this process with status 1 unless it is destroyed in time. Bounds calls
/// that cannot be cancelled, such as MPI's start after another process has
/// died.
/// \threadsafety Expire may be called from any thread.
class StartDeadline {
 public:
  /// \param report called on another thread before the process ends.
  StartDeadline(absl::Duration time, std::function<void()> report);
  ~StartDeadline();
  /// Ends the process now: the call cannot return any more.
  void Expire();
  StartDeadline(const StartDeadline&) = delete;
  StartDeadline& operator=(const StartDeadline&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_over_ = false;
  bool is_hopeless_ = false;
  std::thread watch_;
};

}  // namespace crosshatch

#endif  // CROSSHATCH_LAUNCH_START_DEADLINE_H_
