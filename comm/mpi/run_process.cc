// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/mpi/run_process.h"

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/base/threads.h"
#include "crosshatch/comm/job_failure.h"
#include "crosshatch/comm/mpi/message_plane.h"
#include "crosshatch/comm/mpi/process_group.h"
#include "crosshatch/comm/mpi/process_job.h"
#include "crosshatch/comm/run_rank.h"
#include "crosshatch/tensor/device_backend.h"

namespace crosshatch::internal {
namespace {

class WatchThread {
 public:
  explicit WatchThread(ProcessJob& job) : job_(job) {}
  WatchThread(const WatchThread&) = delete;
  WatchThread& operator=(const WatchThread&) = delete;
  ~WatchThread() {
    {
      std::lock_guard lock(mutex_);
      ending_ = true;
    }
    ends_.notify_one();
    if (thread_.joinable()) thread_.join();
  }

  absl::Status Start() {
    CH_ASSIGN_OR_RETURN(
        thread_, StartThread(absl::StrCat("the watch over rank ", job_.rank()),
                             [this] { Watch(); }));
    return absl::OkStatus();
  }

 private:
  // The longest time until a rank that waits for nothing receives a failure. A
  // poll takes some microseconds.
  static constexpr std::chrono::milliseconds kPause{20};

  void Watch() {
    std::unique_lock lock(mutex_);
    while (!ends_.wait_for(lock, kPause, [this] { return ending_; })) {
      job_.Watch();
    }
  }

  ProcessJob& job_;
  std::mutex mutex_;
  std::condition_variable ends_;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace

absl::Status CheckOptions(const MpiOptions& options) {
  const int64_t bytes = options.job.test.max_message_bytes;
  if (bytes < 8 || bytes > int64_t{1} << 30) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_message_bytes must be from 8 to 2^30, not ", bytes));
  }
  // All are of one kind.
  const DeviceBackend* const backend = options.job.backend(0);
  const bool on_host = backend == nullptr || backend->host_addressable();
  if (options.planes == nullptr && !on_host) {
    std::ostringstream device;
    device << backend->device();
    return absl::InvalidArgumentError(absl::StrCat(
        "MPI moves what the host can address, and the host cannot address the "
        "memory of ",
        device.str()));
  }
  if (options.planes != nullptr &&
      options.planes->moves_host_memory() != on_host) {
    return absl::InvalidArgumentError(absl::StrCat(
        options.planes->name(),
        on_host ? " moves the memory of devices, and the ranks' is the host's: "
                  "name a CUDA backend"
                : " moves the memory of the host, and the ranks' is a "
                  "device's"));
  }
  return CheckRun(options.job.timeout);
}

absl::Status LossOf(const MpiOptions& options) {
  return options.failure_channel == nullptr ? absl::OkStatus()
                                            : options.failure_channel->loss();
}

ProcessResult RunProcess(Link& link, absl::FunctionRef<absl::Status(World&)> fn,
                         const MpiOptions& options) {
  // Work that this thread has issued completes before the rank reads it.
  RankContext::Current().Synchronize().IgnoreError();
  const int threads = options.job.threads_per_rank > 0
                          ? options.job.threads_per_rank
                          : link.core_share();
  const auto job = std::make_shared<ProcessJob>(link, options.job.timeout,
                                                options.failure_channel);
  ProcessResult result;
  {
    RankContext context({.world_rank = link.rank(),
                         .world_size = link.size(),
                         .backend = options.job.backend(link.rank()),
                         .threads = threads,
                         .adversarial_seed = options.job.test.adversarial_seed,
                         .sink = options.job.sink(link.rank()),
                         .decorator = options.job.decorator(link.rank())});
    RankContextScope scope(&context);
    job->Enter(context);
    WatchThread watch(*job);
    const absl::Status started = watch.Start();
    if (started.ok()) {
      ProcessControlPlane control(job, context);
      MessagePlanes messages(options.ucx != nullptr ? "ucx" : "mpi", job,
                             options.job.test.max_message_bytes);
      World world(control,
                  options.planes != nullptr ? *options.planes : messages,
                  context);
      RunRank(world, fn).IgnoreError();  // It has failed the job.
    } else {
      job->FailRank(started);
    }
    result.status = job->End();
    result.ended_together = job->ended_together();
    if (options.planes != nullptr && !result.status.ok()) {
      options.planes->Abort(context);
    }
    job->Leave();
  }
  return result;
}

}  // namespace crosshatch::internal
