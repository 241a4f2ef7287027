// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_LAUNCH_START_DEADLINE_H_
#define CROSSHATCH_LAUNCH_START_DEADLINE_H_

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "absl/time/time.h"

namespace crosshatch {

/// Bounds what has no bound of its own and cannot be broken off, as MPI's start
/// and its end where another process has died: ends this process, with status
/// 1, unless it is destroyed in time.
/// \threadsafety Expire may be called from any thread.
class StartDeadline {
 public:
  /// \param say is called on a thread of its own before the process ends.
  StartDeadline(absl::Duration time, std::function<void()> say);
  ~StartDeadline();
  /// What it bounds cannot end any more: as if the time were over.
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
