// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_NCCL_NCCL_COMM_H_
#define CROSSHATCH_COMM_NCCL_NCCL_COMM_H_

/// \file
/// One NCCL communicator, which may be aborted during its use.

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

/// A nonblocking NCCL communicator. If NCCL has not finished when a call
/// returns, this class waits, and an abort ends the wait.
class NcclComm {
 public:
  using Clock = std::chrono::steady_clock;

  /// \param id 128 bytes of ncclGetUniqueId, the same on all members.
  /// \param what names the group in messages.
  /// \param timeout see DataPlanes::Connect.
  static absl::StatusOr<std::unique_ptr<NcclComm>> Create(
      const std::string& id, int size, int rank, std::string what,
      absl::Duration timeout);
  /// Splits `parent`; all of its ranks call it. Those of one `color` (at least
  /// 0) get a communicator, in the order of their keys.
  /// \pre `parent` has no work in flight.
  /// \returns null for a rank without a color
  static absl::StatusOr<std::unique_ptr<NcclComm>> Split(
      NcclComm& parent, std::optional<int> color, int key, std::string what,
      absl::Duration timeout);
  /// Waits for issued work and for NCCL, up to the timeout. Aborts a failed
  /// communicator.
  ~NcclComm();
  NcclComm(const NcclComm&) = delete;
  NcclComm& operator=(const NcclComm&) = delete;

  /// Returns whether `data` is memory of a device. Host memory cannot be
  /// registered.
  bool IsOfDevice(const void* data);
  /// Prepares device memory for calls. Registers its allocation once, so that
  /// NCCL needs no copy.
  /// \error if it cannot be registered, because NCCL needs registered memory of
  ///     all members of a call, or of none
  absl::Status Use(const void* data, int64_t bytes);
  /// Forgets the allocation at `data`, which is being freed. Issued work does
  /// not use it.
  void MemoryGoes(const void* data);
  /// Forgets the device's memory. Nothing more is issued.
  void LeaveMemory();

  /// Calls `issue`, which calls NCCL, within an NCCL group.
  /// \error any error of NCCL.
  absl::Status Group(absl::FunctionRef<ncclResult_t(ncclComm_t)> issue);
  /// Records that a collective has been issued; `end` is the point after it.
  void Issued(std::string what, Event end);

  absl::Status Poll();
  void Abort();
  /// Returns the latest issued collective and the device's progress; after an
  /// abort, as they were then. Empty before the first.
  std::string Recent();

 private:
  struct Outstanding {
    std::string what;
    Event end;
  };
  struct Registered {
    size_t bytes = 0;
    /// Null if NCCL is configured to register nothing.
    void* handle = nullptr;
  };

  NcclComm(std::string what, absl::Duration timeout)
      : what_(std::move(what)), timeout_(timeout) {}

  /// Waits while `result` is ncclInProgress and `context`, which may be null,
  /// is not poisoned.
  /// \pre The lock is held.
  absl::Status Settle(std::unique_lock<std::mutex>& lock, ncclResult_t result,
                      const RankContext* context = &RankContext::Current());
  /// \pre The lock is held.
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
  /// Incomplete collectives in order, and since when the oldest one is the
  /// oldest.
  std::deque<Outstanding> outstanding_;
  Clock::time_point oldest_since_;
  /// The last completed one.
  std::string ended_;
  /// Recent() at the time of an abort.
  std::string at_abort_;
  /// By the start of the allocation.
  std::map<uintptr_t, Registered> registered_;
};

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_COMM_NCCL_NCCL_COMM_H_
