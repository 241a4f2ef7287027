// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_NCCL_NCCL_COMM_H_
#define CROSSHATCH_COMM_NCCL_NCCL_COMM_H_

/// \file
/// One communicator of NCCL, which may be aborted while it is used.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "crosshatch/comm/nccl/nccl_api.cuh"
#include "crosshatch/tensor/rank_context.h"
#include "crosshatch/tensor/stream.h"

namespace crosshatch::internal {

/// It does not block: what NCCL has not done when a call returns is waited for
/// here, where an abort ends the wait.
class NcclComm {
 public:
  using Clock = std::chrono::steady_clock;

  /// \param id 128 bytes of ncclGetUniqueId, the same on all members.
  /// \param what names the group in messages.
  /// \param timeout see DataPlanes::Connect.
  static absl::StatusOr<std::unique_ptr<NcclComm>> Create(
      const std::string& id, int size, int rank, std::string what,
      absl::Duration timeout);
  /// Of the ranks of `parent`, all of which call this at one time, those of
  /// `color` (at least 0), in the order of their keys. No work of the parent's
  /// is under way.
  /// \returns null for a rank of no color.
  static absl::StatusOr<std::unique_ptr<NcclComm>> Split(
      NcclComm& parent, std::optional<int> color, int key, std::string what,
      absl::Duration timeout);
  /// Waits for what was issued and for NCCL, as long as the timeout; what has
  /// failed it aborts.
  ~NcclComm();
  NcclComm(const NcclComm&) = delete;
  NcclComm& operator=(const NcclComm&) = delete;

  /// Returns whether `data` is memory of a device. Host memory cannot be
  /// registered.
  bool IsOfDevice(const void* data);
  /// Prepares these bytes of the device's memory for calls. Registers their
  /// allocation, if it is not registered yet, so that NCCL needs no copy of its
  /// own.
  /// \error that it cannot be registered: NCCL needs that of all members of a
  ///     call, or of none.
  absl::Status Use(const void* data, int64_t bytes);
  /// The allocation that begins at `data` goes. Nothing that was issued uses
  /// it.
  void MemoryGoes(const void* data);
  /// The device's memory goes, and nothing more is issued.
  void LeaveMemory();

  /// Calls `issue`, which calls NCCL's functions, within a group.
  /// \error what any of them returned.
  absl::Status Group(absl::FunctionRef<ncclResult_t(ncclComm_t)> issue);
  /// All of a collective has been issued; `end` is the point after it.
  void Issued(std::string what, Event end);

  absl::Status Poll();
  void Abort();
  /// The latest that was issued, and how far the device has come; of an
  /// aborted one how far it had. Empty before the first.
  std::string Recent();

 private:
  struct Outstanding {
    std::string what;
    Event end;
  };
  struct Registered {
    size_t bytes = 0;
    /// Null: NCCL is set to register nothing.
    void* handle = nullptr;
  };

  NcclComm(std::string what, absl::Duration timeout)
      : what_(std::move(what)), timeout_(timeout) {}

  /// Waits while `result` is "in progress" and `context`, which may be null, is
  /// not poisoned. The lock is held.
  absl::Status Settle(std::unique_lock<std::mutex>& lock, ncclResult_t result,
                      const RankContext* context = &RankContext::Current());
  /// With the lock held.
  bool IsRegistered(uintptr_t address) const;
  void Deregister(const Registered& registered);
  void ForgetWhatHasEnded();
  void AbortLocked();
  absl::Status Aborted() const;
  std::string RecentLocked();

  const std::string what_;
  const absl::Duration timeout_;
  std::mutex mutex_;
  ncclComm_t comm_ = nullptr;
  /// What has been issued and has not ended, in that order, and since when the
  /// oldest has been that.
  std::deque<Outstanding> outstanding_;
  Clock::time_point oldest_since_;
  /// The last that has ended.
  std::string ended_;
  /// Recent() of what has been aborted.
  std::string at_abort_;
  /// By the start of the allocation.
  std::map<uintptr_t, Registered> registered_;
};

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_COMM_NCCL_NCCL_COMM_H_
