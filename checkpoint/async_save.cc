// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/checkpoint/async_save.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

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

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "crosshatch/base/start_thread.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/checkpoint/on_ranks.h"
#include "crosshatch/checkpoint/save_job.h"
#include "crosshatch/tensor/host_access.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch::checkpoint {
namespace {

// Where training keeps all cores busy, this thread is to have what it leaves:
// a rank that waits for a core keeps all the others waiting, and nobody waits
// for a checkpoint, but for the next one. It still gets about a tenth of a
// core. On Linux the priority is the thread's own, and to lower it takes no
// right.
void LetTrainingGoFirst() {
  constexpr int kNice = 10;
  setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), kNice);
}

}  // namespace

AsyncCheckpointer::AsyncCheckpointer(World& world, AsyncOptions options)
    : world_(world), options_(options) {}

AsyncCheckpointer::~AsyncCheckpointer() {
  // The peers of a run that failed may never report.
  const absl::Status status = world_.context().status();
  if (!status.ok()) Deliver(status);
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
  CH_ASSIGN_OR_RETURN(job_, SaveJob::Prepare(world_, state, dir, overwrite,
                                             *options_.file_system));
  written_ = {};
  committed_ = {};
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    delivered_.reset();
  }
  std::vector<const void*> data = Stage(*job_);
  // A rank that a peer's failure poisons meanwhile skips copies, and has what
  // was in the memory before.
  absl::Status began = world_.context().status();
  if (began.ok()) {
    absl::StatusOr<std::thread> writer =
        StartThread("the thread that writes checkpoints",
                    [this, data = std::move(data), then = std::move(then)] {
                      LetTrainingGoFirst();
                      Write(data, then);
                    });
    began = writer.status();
    if (writer.ok()) writer_ = *std::move(writer);
  }
  if (!began.ok()) {
    // As if it had been started and had failed: the peers learn of it when they
    // meet, and the first rank's thread by a report where they never do.
    if (world_.rank() != 0) job_->WriteReport(began).IgnoreError();
    written_.set_value(began);
    committed_.set_value(began);
  }
  return absl::OkStatus();
}

std::vector<const void*> AsyncCheckpointer::Stage(const SaveJob& job) {
  const auto size_of = [](const SaveJob::Piece& piece) {
    return static_cast<size_t>(piece.data.numel() * SizeOf(piece.data.dtype()));
  };
  size_t bytes = 0;
  for (const SaveJob::Piece& piece : job.pieces()) bytes += size_of(piece);
  // Memory that was touched before takes a copy in half the time.
  if (bytes > staging_bytes_) {
    staging_.reset();
    staging_.reset(new std::byte[bytes]);
    staging_bytes_ = bytes;
  }
  std::vector<const void*> data;
  std::byte* next = staging_.get();
  for (const SaveJob::Piece& piece : job.pieces()) {
    std::memcpy(next, HostView(piece.data).data(), size_of(piece));
    data.push_back(next);
    next += size_of(piece);
  }
  return data;
}

absl::StatusOr<std::string> AsyncCheckpointer::WriteFile(
    const std::vector<const void*>& data) {
  CH_RETURN_IF_ERROR(job_->BeginFile());
  CH_RETURN_IF_ERROR(job_->Write(job_->pieces(), data));
  return job_->EndFile();
}

void AsyncCheckpointer::Write(const std::vector<const void*>& data,
                              const std::function<absl::Status()>& then) {
  const absl::StatusOr<std::string> hashes = WriteFile(data);
  if (world_.rank() != 0) {
    // Where it cannot be left, the first rank hears of it when they meet.
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
          return delivered_->ok() ? absl::AbortedError("they said so otherwise")
                                  : delivered_->status();
        }
        // A peer that is gone never reports.
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
  const absl::Status status = Finish();
  JoinWriter();
  job_.reset();
  return status;
}

absl::Status AsyncCheckpointer::Finish() {
  CH_ASSIGN_OR_RETURN(const std::shared_ptr<Communicator> comm,
                      AllRanks(world_));
  const absl::StatusOr<std::vector<std::string>> written = OnEveryRank(
      *comm, "async save: write", [&] { return written_.get_future().get(); });
  Deliver(written);
  const absl::Status committed = OnFirstRank(*comm, "async save: commit", [&] {
    return committed_.get_future().get();
  });
  return written.ok() ? committed : written.status();
}

void AsyncCheckpointer::Deliver(
    absl::StatusOr<std::vector<std::string>> hashes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  delivered_ = std::move(hashes);
}

void AsyncCheckpointer::JoinWriter() {
  if (writer_.joinable()) writer_.join();
}

}  // namespace crosshatch::checkpoint
