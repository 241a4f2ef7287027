// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <iterator>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/nccl/nccl_comm.h"

namespace crosshatch::internal {
namespace {

absl::Status ErrorOf(const std::string& what, ncclResult_t result) {
  const std::string text =
      absl::StrCat("NCCL in ", what, ": ", ncclGetErrorString(result));
  // Another process or the network has failed.
  if (result == ncclRemoteError || result == ncclSystemError) {
    return absl::UnavailableError(text);
  }
  return absl::InternalError(text);
}

}  // namespace

absl::StatusOr<std::unique_ptr<NcclComm>> NcclComm::Create(
    const std::string& id, int size, int rank, std::string what,
    absl::Duration timeout) {
  std::unique_ptr<NcclComm> made(new NcclComm(std::move(what), timeout));
  ncclUniqueId unique = {};
  if (id.size() != sizeof(unique.internal)) {
    return absl::InternalError(absl::StrCat(
        "NCCL in ", made->what_, ": an id of ", id.size(), " bytes"));
  }
  std::memcpy(unique.internal, id.data(), id.size());
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  std::unique_lock<std::mutex> lock(made->mutex_);
  const ncclResult_t result =
      ncclCommInitRankConfig(&made->comm_, size, unique, rank, &config);
  if (made->comm_ == nullptr) return ErrorOf(made->what_, result);
  const absl::Status settled = made->Settle(lock, result);
  // A communicator that is not ready can only be aborted.
  if (!settled.ok()) made->AbortLocked();
  lock.unlock();
  if (!settled.ok()) return settled;
  return made;
}

absl::StatusOr<std::unique_ptr<NcclComm>> NcclComm::Split(
    NcclComm& parent, std::optional<int> color, int key, std::string what,
    absl::Duration timeout) {
  std::unique_ptr<NcclComm> made(new NcclComm(std::move(what), timeout));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  {
    std::unique_lock<std::mutex> lock(parent.mutex_);
    if (parent.comm_ == nullptr) return parent.Aborted();
    // NCCL writes the child when the parent is ready again.
    const absl::Status settled = parent.Settle(
        lock, ncclCommSplit(parent.comm_, color.value_or(NCCL_SPLIT_NOCOLOR),
                            key, &made->comm_, &config));
    if (!settled.ok()) {
      parent.AbortLocked();
      if (made->comm_ != nullptr) made->Abort();
      return settled;
    }
  }
  if (!color.has_value()) return nullptr;
  if (made->comm_ == nullptr) {
    return absl::InternalError(absl::StrCat("NCCL in ", made->what_,
                                            ": a split made no communicator"));
  }
  std::unique_lock<std::mutex> lock(made->mutex_);
  const absl::Status settled = made->Settle(lock, ncclInProgress);
  if (!settled.ok()) made->AbortLocked();
  lock.unlock();
  if (!settled.ok()) return settled;
  return made;
}

NcclComm::~NcclComm() {
  LeaveMemory();
  std::unique_lock<std::mutex> lock(mutex_);
  if (comm_ == nullptr) return;
  // ncclCommDestroy would finalize it, too, but wait within NCCL, where nothing
  // interrupts the wait for a lost peer. It also refuses a communicator that
  // has failed meanwhile, which only an abort frees. The rank's context and
  // thread may have ended.
  if (Settle(lock, ncclCommFinalize(comm_), /*context=*/nullptr).ok()) {
    ncclCommDestroy(std::exchange(comm_, nullptr));
  } else {
    AbortLocked();
  }
}

bool NcclComm::IsRegistered(uintptr_t address) const {
  const auto after = registered_.upper_bound(address);
  if (after == registered_.begin()) return false;
  const auto& [start, known] = *std::prev(after);
  return address - start < known.bytes;
}

bool NcclComm::IsOfDevice(const void* data) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (IsRegistered(reinterpret_cast<uintptr_t>(data))) return true;
  }
  return AllocationOf(data).bytes > 0;
}

absl::Status NcclComm::Use(const void* data, int64_t bytes) {
  if (bytes == 0) return absl::OkStatus();
  std::lock_guard<std::mutex> lock(mutex_);
  if (comm_ == nullptr) return Aborted();
  if (IsRegistered(reinterpret_cast<uintptr_t>(data))) return absl::OkStatus();
  const NcclMemory memory = AllocationOf(data);
  Registered registered = {.bytes = memory.bytes};
  const ncclResult_t result =
      ncclCommRegister(comm_, reinterpret_cast<void*>(memory.start),
                       memory.bytes, &registered.handle);
  if (result != ncclSuccess) {
    return absl::InternalError(absl::StrCat(
        "NCCL in ", what_, ": cannot register ", memory.bytes,
        " bytes of the device's memory: ", ncclGetErrorString(result),
        "; with NCCL_LOCAL_REGISTER=0 on all ranks it registers none"));
  }
  registered_.emplace(memory.start, registered);
  return absl::OkStatus();
}

void NcclComm::MemoryGoes(const void* data) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = registered_.find(reinterpret_cast<uintptr_t>(data));
  if (found == registered_.end()) return;
  Deregister(found->second);
  registered_.erase(found);
}

void NcclComm::Deregister(const Registered& registered) {
  if (comm_ != nullptr && registered.handle != nullptr) {
    ncclCommDeregister(comm_, registered.handle);
  }
}

void NcclComm::LeaveMemory() {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [start, registered] : registered_) Deregister(registered);
  registered_.clear();
}

absl::Status NcclComm::Settle(std::unique_lock<std::mutex>& lock,
                              ncclResult_t result, const RankContext* context) {
  const Clock::time_point began = Clock::now();
  while (result == ncclInProgress) {
    lock.unlock();
    std::this_thread::yield();
    lock.lock();
    if (comm_ == nullptr) return Aborted();
    // No other thread aborts a communicator during its creation.
    if (context != nullptr && context->poisoned()) return context->status();
    const ncclResult_t queried = ncclCommGetAsyncError(comm_, &result);
    if (queried != ncclSuccess) result = queried;
    if (result == ncclInProgress &&
        absl::FromChrono(Clock::now() - began) > timeout_) {
      return absl::DeadlineExceededError(
          absl::StrCat("NCCL in ", what_, " is in progress for more than ",
                       absl::FormatDuration(timeout_)));
    }
  }
  return result == ncclSuccess ? absl::OkStatus() : ErrorOf(what_, result);
}

absl::Status NcclComm::Group(
    absl::FunctionRef<ncclResult_t(ncclComm_t)> issue) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (comm_ == nullptr) return Aborted();
  const ncclResult_t started = ncclGroupStart();
  if (started != ncclSuccess) return ErrorOf(what_, started);
  const ncclResult_t issued = issue(comm_);
  // ncclGroupEnd ends the group even after an error.
  const ncclResult_t ended = ncclGroupEnd();
  const absl::Status settled = Settle(lock, ended);
  const bool was_issued = issued == ncclSuccess || issued == ncclInProgress;
  if (!was_issued || !settled.ok()) AbortLocked();
  return was_issued ? settled : ErrorOf(what_, issued);
}

void NcclComm::Issued(std::string what, Event end) {
  std::lock_guard<std::mutex> lock(mutex_);
  ForgetWhatHasEnded();
  if (outstanding_.empty()) oldest_since_ = Clock::now();
  outstanding_.push_back({std::move(what), std::move(end)});
}

void NcclComm::ForgetWhatHasEnded() {
  while (!outstanding_.empty()) {
    Event::State* const state = outstanding_.front().end.state();
    if (state != nullptr && !state->reached()) return;
    ended_ = std::move(outstanding_.front().what);
    outstanding_.pop_front();
    oldest_since_ = Clock::now();
  }
}

absl::Status NcclComm::Poll() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (comm_ == nullptr) return absl::OkStatus();
  ForgetWhatHasEnded();
  const std::string oldest =
      outstanding_.empty() ? std::string()
                           : absl::StrCat(" in ", outstanding_.front().what);
  ncclResult_t state = ncclSuccess;
  const ncclResult_t queried = ncclCommGetAsyncError(comm_, &state);
  if (queried != ncclSuccess) state = queried;
  if (state != ncclSuccess && state != ncclInProgress) {
    AbortLocked();
    return ErrorOf(absl::StrCat(what_, oldest), state);
  }
  if (outstanding_.empty() ||
      absl::FromChrono(Clock::now() - oldest_since_) <= timeout_) {
    return absl::OkStatus();
  }
  return absl::DeadlineExceededError(absl::StrCat(
      what_, " timed out after ", absl::FormatDuration(timeout_), oldest,
      ": all ranks have issued it, and the device of one does not come to its "
      "end; behind it are ",
      outstanding_.size() - 1, " more, up to ", outstanding_.back().what));
}

void NcclComm::Abort() {
  std::lock_guard<std::mutex> lock(mutex_);
  AbortLocked();
}

std::string NcclComm::Recent() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (comm_ == nullptr) return at_abort_;
  ForgetWhatHasEnded();
  return RecentLocked();
}

std::string NcclComm::RecentLocked() {
  constexpr size_t kMost = 8;
  std::string text;
  if (!ended_.empty()) absl::StrAppend(&text, "has done ", ended_);
  for (size_t i = 0; i < outstanding_.size() && i < kMost; ++i) {
    absl::StrAppend(&text,
                    i > 0          ? ", "
                    : text.empty() ? "has not done "
                                   : ", and not ",
                    outstanding_[i].what);
  }
  if (outstanding_.size() > kMost) {
    absl::StrAppend(&text, " and ", outstanding_.size() - kMost,
                    " more, up to ", outstanding_.back().what);
  }
  return text;
}

void NcclComm::AbortLocked() {
  if (comm_ == nullptr) return;
  ForgetWhatHasEnded();
  at_abort_ = RecentLocked();
  ncclCommAbort(std::exchange(comm_, nullptr));
  outstanding_.clear();
}

absl::Status NcclComm::Aborted() const {
  return absl::AbortedError(absl::StrCat("NCCL in ", what_, " was aborted"));
}

}  // namespace crosshatch::internal
