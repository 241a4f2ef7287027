// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_NCCL_NCCL_COMM_H_
#define CROSSHATCH_COMM_NCCL_NCCL_COMM_H_

/// \file
/// One communicator of NCCL, which may be aborted while it is used.

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "crosshatch/comm/nccl/nccl_api.cuh"
#include "crosshatch/tensor/stream.h"

namespace crosshatch::internal {

/// It does not block: what NCCL has not done when a call returns is waited for
/// here, where an abort ends the wait.
class NcclComm {
 public:
  using Clock = std::chrono::steady_clock;

  /// \param id 128 bytes of ncclGetUniqueId, the same on all members.
  /// \param what names the group in messages.
  /// \param timeout see DeviceMovers::Connect.
  static absl::StatusOr<std::unique_ptr<NcclComm>> Create(
      const std::string& id, int size, int rank, std::string what,
      absl::Duration timeout);
  ~NcclComm();
  NcclComm(const NcclComm&) = delete;
  NcclComm& operator=(const NcclComm&) = delete;

  /// Calls `issue`, which calls NCCL's functions, within a group.
  /// \error what any of them returned.
  absl::Status Group(absl::FunctionRef<ncclResult_t(ncclComm_t)> issue);
  /// All of a collective has been issued; `end` is the point after it.
  void Issued(std::string what, Event end);

  absl::Status Poll();
  void Abort();

 private:
  struct Outstanding {
    std::string what;
    Event end;
  };

  NcclComm(std::string what, absl::Duration timeout)
      : what_(std::move(what)), timeout_(timeout) {}

  /// Waits for what `result` says is in progress. The lock is held.
  absl::Status Settle(std::unique_lock<std::mutex>& lock, ncclResult_t result);
  /// With the lock held.
  void ForgetWhatHasEnded();
  void AbortLocked();
  absl::Status Aborted() const;

  const std::string what_;
  const absl::Duration timeout_;
  std::mutex mutex_;
  ncclComm_t comm_ = nullptr;
  /// What has been issued and has not ended, in that order, and since when the
  /// oldest has been that.
  std::deque<Outstanding> outstanding_;
  Clock::time_point oldest_since_;
};

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_COMM_NCCL_NCCL_COMM_H_
