// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_MPI_HEARD_LOSS_H_
#define CROSSHATCH_COMM_MPI_HEARD_LOSS_H_

#include <mutex>

#include "absl/status/status.h"
#include "crosshatch/comm/failure_channel.h"
#include "crosshatch/comm/job_failure.h"

namespace crosshatch::internal {

/// Receives from a failure channel, while there is no job yet, that a process
/// is lost and will not come to it. Of other failures the ranks learn in the
/// job.
class HeardLoss {
 public:
  /// \param channel may be null; outlives this.
  explicit HeardLoss(FailureChannel* channel) : channel_(channel) {
    if (channel_ == nullptr) return;
    channel_->OnFailure([this](const FailureNotice& notice) {
      if (!notice.process_lost && !notice.cut_off) return;
      std::lock_guard lock(mutex_);
      if (loss_.ok()) loss_ = FailureOf(notice).result;
    });
  }
  HeardLoss(const HeardLoss&) = delete;
  HeardLoss& operator=(const HeardLoss&) = delete;
  ~HeardLoss() {
    if (channel_ != nullptr) channel_->OnFailure(nullptr);
  }

  absl::Status loss() const {
    std::lock_guard lock(mutex_);
    return loss_;
  }

 private:
  FailureChannel* const channel_;
  mutable std::mutex mutex_;
  absl::Status loss_;
};

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_COMM_MPI_HEARD_LOSS_H_
