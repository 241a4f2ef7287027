// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/checkpoint/async_save.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/base/threads.h"
#include "crosshatch/checkpoint/box_runs.h"
#include "crosshatch/checkpoint/on_ranks.h"
#include "crosshatch/checkpoint/save_job.h"
#include "crosshatch/tensor/allocator.h"
#include "crosshatch/tensor/host_access.h"
#include "crosshatch/tensor/rank_context.h"
#include "crosshatch/tensor/stream.h"
#include "crosshatch/tensor/write_guard.h"

namespace crosshatch::checkpoint {
namespace {

/// Size of a part of the work. A thread that takes work over waits for at most
/// one part of the low-priority thread.
constexpr size_t kPartBytes = size_t{256} << 10;

/// Smaller writes take milliseconds, less than starting and joining a
/// low-priority thread on a busy machine.
constexpr size_t kSmallSaveBytes = size_t{4} << 20;

// Lowers the calling thread to the CPU time that training leaves. A rank that
// waits for a CPU delays all others, whereas only the next save waits for the
// file. An op that changes the state waits for the copy, which the rank then
// completes itself (BackgroundWork).
//
// Such a thread must not run the end of a save, which no other thread can take
// over. Next to a busy thread, Linux gives this class about 1/300 of a CPU, and
// all of it while ranks wait. Lowering needs no privileges. If it fails, the
// save only slows down training.
void UseIdlePriority() {
  const sched_param none = {};
  sched_setscheduler(/*pid=*/0, SCHED_IDLE, &none);
}

// Uses the monotonic clock, because the wall clock may be set.
absl::Duration Since(std::chrono::steady_clock::time_point begin) {
  return absl::FromChrono(std::chrono::steady_clock::now() - begin);
}

}  // namespace

BackgroundWork::BackgroundWork(size_t size,
                               std::function<absl::Status(size_t)> part)
    : size_(size), part_(std::move(part)) {}

void BackgroundWork::RunNext(Lock& lock) {
  const size_t part = next_++;
  is_running_ = true;
  absl::Status status =
      absl::InternalError("background work threw an exception");
  const absl::Cleanup end = [&] {
    lock.lock();
    is_running_ = false;
    if (status_.ok()) status_ = status;
    changed_.notify_all();
  };
  lock.unlock();
  status = part_(part);
}

absl::Status BackgroundWork::RunInBackground() {
  Lock lock(mutex_);
  while (!is_over()) {
    if (is_running_ || next_ < taken_over_) {
      changed_.wait(lock);
    } else {
      RunNext(lock);
    }
  }
  return status_;
}

absl::Status BackgroundWork::RunUntil(size_t count) {
  Lock lock(mutex_);
  taken_over_ = std::max(taken_over_, count);
  while (!is_over() && num_done() < count) {
    if (is_running_) {
      changed_.wait(lock);
    } else {
      RunNext(lock);
    }
  }
  return status_;
}

AsyncCheckpointer::AsyncCheckpointer(World& world, AsyncOptions options)
    : world_(world), options_(options) {}

AsyncCheckpointer::~AsyncCheckpointer() {
  if (work_ != nullptr) work_->RunUntil(work_->size()).IgnoreError();
  JoinWriter();
}

absl::Status AsyncCheckpointer::Save(const nn::StateDict& state,
                                     const std::string& dir, bool overwrite,
                                     std::function<absl::Status()> then) {
  CH_RETURN_IF_ERROR(Wait());
  return Begin(state, dir, overwrite, std::move(then));
}

absl::Status AsyncCheckpointer::Save(nn::Stateful& stateful,
                                     const std::string& dir, bool overwrite,
                                     std::function<absl::Status()> then) {
  CH_RETURN_IF_ERROR(Wait());
  return Begin(stateful.State(), dir, overwrite, std::move(then));
}

absl::Status AsyncCheckpointer::Begin(
    const absl::StatusOr<nn::StateDict>& state, const std::string& dir,
    bool overwrite, std::function<absl::Status()> then) {
  const auto begin = std::chrono::steady_clock::now();
  blocked_duration_ = absl::ZeroDuration();
  if (world_.context().dry_run()) {
    CH_RETURN_IF_ERROR(state.status());
    return SaveCheckpoint(world_, *state, dir);
  }
  std::optional<absl::StatusOr<nn::StateDict>> late;
  if (device_is_late_ && !device_copied_.state()->reached()) {
    // Prepare would wait for the device without limit.
    late = absl::DeadlineExceededError(
        absl::StrCat("the device still copies the state for the save before, "
                     "which was abandoned after ",
                     absl::FormatDuration(options_.timeout)));
  }
  CH_ASSIGN_OR_RETURN(
      job_, SaveJob::Prepare(
                world_, late.has_value() ? *late : state, dir,
                {.overwrite = overwrite,
                 .use_fallback_directory = options_.use_fallback_directory,
                 .union_of_ranks = options_.union_of_ranks,
                 .file_system = options_.file_system}));
  written_ = {};
  until_written_ = written_.get_future().share();
  committed_ = {};
  until_committed_ = committed_.get_future();
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    delivered_.reset();
  }
  PlanWork(BeginCopies());
  // Also on a rank that a failure has poisoned: its work fails, and that thread
  // reports so.
  absl::StatusOr<std::thread> writer =
      StartThread("the thread that writes checkpoints",
                  [this, then = std::move(then)] { Write(then); });
  if (writer.ok()) {
    writer_ = *std::move(writer);
    std::vector<std::shared_ptr<Storage>> read;
    for (const SaveJob::Piece& piece : job_->pieces()) {
      read.push_back(piece.data.storage());
    }
    guard_ = std::make_unique<WriteGuard>(std::move(read),
                                          [this] { WaitUntilCopied(); });
  } else {
    // Ends the save like one that failed after its start. Peers learn of the
    // error in the next exchange, or the first rank's thread by the report.
    // Wait or the destructor writes it: from here, training would wait for the
    // disk.
    AwaitDevice();
    num_copies_ = 0;
    work_ = std::make_unique<BackgroundWork>(
        1, [this, error = writer.status()](size_t) {
          if (world_.rank() != 0) job_->WriteReport(error).IgnoreError();
          return error;
        });
    written_.set_value(writer.status());
    committed_.set_value(writer.status());
  }
  blocked_duration_ += Since(begin);
  return absl::OkStatus();
}

std::vector<AsyncCheckpointer::Copy> AsyncCheckpointer::BeginCopies() {
  RankContext& context = world_.context();
  std::vector<Copy> copies;
  size_t bytes = 0;
  for (const SaveJob::Piece& piece : job_->pieces()) {
    copies.push_back({.to = nullptr,
                      .from = nullptr,
                      .bytes = static_cast<size_t>(
                          piece.data.numel() * SizeOf(piece.data.dtype()))});
    bytes += copies.back().bytes;
  }
  const bool by_host = context.backend().host_addressable();
  Stream& compute = context.compute_stream();
  Stream& side = by_host ? compute : context.SideStream("checkpoint");
  // Copies to memory that was touched before take half the time.
  if (bytes > staging_bytes_) {
    staging_.reset();
    staging_block_ = Block();
    if (by_host) {
      staging_.reset(new std::byte[bytes]);
    } else {
      staging_block_ = context.host_allocator().Allocate(
          static_cast<int64_t>(bytes), context.memory_class(), side);
    }
    staging_bytes_ = bytes;
  }
  std::byte* next = by_host ? staging_.get() : staging_block_.data();
  if (!by_host) side.Wait(compute.Record());
  const StreamScope scope(side);
  for (size_t i = 0; i < copies.size(); ++i) {
    const Tensor& data = job_->pieces()[i].data;
    copies[i].to = next;
    next += copies[i].bytes;
    if (IsHostAddressable(data)) {
      copies[i].from = HostView(data).data();
    } else {
      CopyToHost(data, copies[i].to);
    }
  }
  // Not a host function: none runs after an error of the device.
  device_copied_ = side.Record();
  device_deadline_ =
      std::chrono::steady_clock::now() + WaitTime(options_.timeout);
  device_is_late_ = false;
  return copies;
}

void AsyncCheckpointer::PlanWork(const std::vector<Copy>& copies) {
  std::vector<Copy> copied;
  std::vector<SaveJob::Piece> written;
  std::vector<const void*> data;
  size_t bytes = 0;
  for (size_t i = 0; i < copies.size(); ++i) {
    const Copy& copy = copies[i];
    bytes += copy.bytes;
    const auto* from = static_cast<const std::byte*>(copy.from);
    for (size_t at = 0; from != nullptr && at < copy.bytes; at += kPartBytes) {
      copied.push_back({.to = copy.to + at,
                        .from = from + at,
                        .bytes = std::min(kPartBytes, copy.bytes - at)});
    }
    const SaveJob::Piece& piece = job_->pieces()[i];
    const int64_t element = SizeOf(piece.data.dtype());
    const std::byte* next = copy.to;
    CH_CHECK_OK(
        ForEachBlock(piece.box, element, kPartBytes, [&](const Box& box) {
          written.push_back({.cell = piece.cell, .box = box, .data = {}});
          data.push_back(next);
          next += box.numel() * element;
          return absl::OkStatus();
        }));
  }
  runs_at_idle_priority_ = bytes > kSmallSaveBytes;
  num_copies_ = copied.size();
  const size_t num_parts = num_copies_ + 1 + written.size();
  work_ = std::make_unique<BackgroundWork>(
      num_parts,
      [this, copied = std::move(copied), written = std::move(written),
       data = std::move(data)](size_t part) -> absl::Status {
        if (part < num_copies_) {
          std::memcpy(copied[part].to, copied[part].from, copied[part].bytes);
          return absl::OkStatus();
        }
        if (part == num_copies_) {
          AwaitDevice();
          // If a peer's failure poisons this rank, its copies are skipped and
          // the memory has old content.
          CH_RETURN_IF_ERROR(world_.context().status());
          if (device_is_late_) {
            return absl::DeadlineExceededError(
                absl::StrCat("the device has not copied the state within ",
                             absl::FormatDuration(options_.timeout)));
          }
          return job_->BeginFile();
        }
        const size_t i = part - num_copies_ - 1;
        return job_->Write({&written[i], 1}, {&data[i], 1});
      });
}

void AsyncCheckpointer::AwaitDevice() {
  // Small copies take less than a millisecond, and a rank may wait for them.
  std::chrono::microseconds poll_interval(100);
  constexpr std::chrono::microseconds kLongestPollInterval(20'000);
  Event::State* const copied = device_copied_.state();
  // On a poisoned rank the stream may have no thread.
  while (copied != nullptr && !copied->reached() &&
         !world_.context().poisoned()) {
    if (std::chrono::steady_clock::now() > device_deadline_) {
      device_is_late_ = true;
      return;
    }
    std::this_thread::sleep_for(poll_interval);
    poll_interval = std::min(2 * poll_interval, kLongestPollInterval);
  }
}

void AsyncCheckpointer::WaitUntilCopied() {
  if (work_ == nullptr) return;
  const auto begin = std::chrono::steady_clock::now();
  // Its error is also an error of the save.
  work_->RunUntil(num_copies_).IgnoreError();
  AwaitDevice();
  blocked_duration_ += Since(begin);
}

absl::StatusOr<std::string> AsyncCheckpointer::WriteFile() {
  if (runs_at_idle_priority_) {
    absl::StatusOr<std::thread> background =
        StartThread("the thread that waits for saves", [this] {
          UseIdlePriority();
          work_->RunInBackground().IgnoreError();
        });
    if (background.ok()) background->join();
  }
  // Runs everything if that thread did not start.
  CH_RETURN_IF_ERROR(work_->RunInBackground());
  return job_->EndFile();
}

void AsyncCheckpointer::Write(const std::function<absl::Status()>& then) {
  const absl::StatusOr<std::string> hashes = WriteFile();
  if (world_.rank() != 0) {
    // If no report can be written, the first rank gets the error by the
    // exchange in Finish.
    job_->WriteReport(hashes).IgnoreError();
    written_.set_value(hashes);
    return;
  }
  written_.set_value(hashes);
  const absl::Time until = absl::Now() + options_.timeout;
  absl::StatusOr<std::vector<std::string>> all =
      job_->AwaitReports(hashes, [&]() -> absl::Status {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (delivered_.has_value()) {
          return delivered_->ok()
                     ? absl::AbortedError(
                           "the ranks have exchanged their results")
                     : delivered_->status();
        }
        // A lost peer never reports.
        if (world_.context().poisoned()) {
          return absl::AbortedError("the run has failed");
        }
        if (absl::Now() < until) return absl::OkStatus();
        return absl::DeadlineExceededError(
            absl::StrCat("waited ", absl::FormatDuration(options_.timeout)));
      });
  if (!all.ok()) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (delivered_.has_value() && delivered_->ok()) all = **delivered_;
  }
  absl::Status status = all.status();
  if (all.ok()) {
    status = job_->Commit(*all);
  } else {
    job_->GiveUp();
  }
  if (status.ok() && then != nullptr) status = then();
  committed_.set_value(status);
}

absl::Status AsyncCheckpointer::Wait() {
  if (job_ == nullptr) return absl::OkStatus();
  // Other programs may leave the low-priority thread no CPU time.
  if (work_ != nullptr) work_->RunUntil(work_->size()).IgnoreError();
  const absl::Status status = Finish();
  JoinWriter();
  guard_.reset();
  work_.reset();
  job_.reset();
  return status;
}

absl::Status AsyncCheckpointer::Poll() {
  if (job_ == nullptr) return absl::OkStatus();
  CH_ASSIGN_OR_RETURN(const std::shared_ptr<Communicator> comm,
                      AllRanks(world_));
  const auto is_over = [](const auto& future) {
    return future.wait_for(std::chrono::seconds(0)) ==
           std::future_status::ready;
  };
  // If a rank has failed, the first rank's thread may not get its report and so
  // may never commit or end.
  std::string own = "busy";
  if (is_over(until_written_)) {
    const bool commits = world_.rank() == 0 && !is_over(until_committed_);
    own = !until_written_.get().ok() ? "failed" : commits ? "written" : "done";
  }
  CH_ASSIGN_OR_RETURN(const std::vector<std::string> states,
                      comm->Exchange(own, "async save: poll"));
  const auto any_is = [&](const char* word) {
    return std::find(states.begin(), states.end(), word) != states.end();
  };
  if (any_is("busy") || (any_is("written") && !any_is("failed"))) {
    return absl::OkStatus();
  }
  return Wait();
}

absl::Status AsyncCheckpointer::Finish() {
  CH_ASSIGN_OR_RETURN(const std::shared_ptr<Communicator> comm,
                      AllRanks(world_));
  const absl::StatusOr<std::vector<std::string>> written = GatherOnEveryRank(
      *comm, "async save: write", [&] { return until_written_.get(); });
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    delivered_ = written;
  }
  const absl::Status committed = OnFirstRank(
      *comm, "async save: commit", [&] { return until_committed_.get(); });
  return written.ok() ? committed : written.status();
}

void AsyncCheckpointer::JoinWriter() {
  if (writer_.joinable()) writer_.join();
}

}  // namespace crosshatch::checkpoint
