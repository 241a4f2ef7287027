// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <latch>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/base/threads.h"
#include "crosshatch/comm/idle_watch.h"
#include "crosshatch/comm/local/local_hub.h"
#include "crosshatch/comm/local/local_planes.h"
#include "crosshatch/comm/return_grace.h"
#include "crosshatch/comm/run_rank.h"
#include "crosshatch/comm/watch_clock.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/tensor/backends/cpu/cpu_backend.h"
#include "crosshatch/tensor/device_backend.h"

namespace crosshatch {
namespace {

using internal::IdleWatch;
using internal::LocalHub;
using internal::WatchClock;
using internal::WatchMoment;

/// Tracks which ranks have finished, for the watchdog.
class Progress {
 public:
  explicit Progress(int ranks) : finished_(ranks) {}

  void Finish(int rank) {
    {
      std::lock_guard lock(mutex_);
      finished_[rank] = true;
    }
    changed_.notify_one();
  }

  /// Waits at most `time`. Returns whether all have finished.
  bool WaitForAll(std::chrono::nanoseconds time) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, time, [&] {
      return std::find(finished_.begin(), finished_.end(), false) ==
             finished_.end();
    });
  }

  std::vector<int> Unfinished() {
    std::lock_guard lock(mutex_);
    std::vector<int> ranks;
    for (size_t r = 0; r < finished_.size(); ++r) {
      if (!finished_[r]) ranks.push_back(static_cast<int>(r));
    }
    return ranks;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<bool> finished_;
};

/// Gives each rank's device access to the others' memory.
absl::Status ConnectDevices(const JobOptions& options, int ranks) {
  std::set<const DeviceBackend*> backends;
  for (int r = 0; r < ranks; ++r) backends.insert(options.backend(r));
  if (backends.erase(nullptr) > 0) backends.insert(&CpuBackend());
  for (const DeviceBackend* const from : backends) {
    for (const DeviceBackend* const to : backends) {
      const absl::Status reached = from->ReachPeer(*to);
      if (reached.ok()) continue;
      return absl::Status(
          reached.code(),
          absl::StrCat("ranks that are threads read one another's memory, and ",
                       std::string(reached.message())));
    }
  }
  return absl::OkStatus();
}

/// Fails the run if a rank computes indefinitely after another has finished.
void CheckIdle(LocalHub& hub, const std::vector<int>& unfinished,
               const WatchMoment& now, absl::Duration timeout,
               std::vector<IdleWatch>& watches) {
  if (unfinished.size() == watches.size()) return;
  for (const int rank : unfinished) {
    const LocalHub::Turns& turns = hub.turns(rank);
    const int64_t ended = turns.ended.load(std::memory_order_relaxed);
    const int64_t begun = turns.begun.load(std::memory_order_relaxed);
    const absl::Status idle = watches[static_cast<size_t>(rank)].Look(
        now.counted, timeout, begun, begun != ended,
        "others, which have finished, wait");
    if (!idle.ok()) return hub.FailRank(rank, idle);
  }
}

/// Waits until all ranks have finished; fails the run after a timeout.
void Watch(LocalHub& hub, int ranks, Progress& progress,
           absl::Duration timeout) {
  const absl::Duration pause =
      std::clamp(timeout / 8, absl::Milliseconds(1), absl::Seconds(1));
  const absl::Duration grace = ReturnGrace(timeout);
  WatchClock clock(/*longest_step=*/2 * pause);
  std::optional<absl::Duration> failed;
  std::vector<IdleWatch> watches(static_cast<size_t>(ranks));
  while (!progress.WaitForAll(absl::ToChronoNanoseconds(pause))) {
    const WatchMoment now = clock.Look(std::chrono::steady_clock::now());
    hub.CheckDeadlines(now);
    CheckIdle(hub, progress.Unfinished(), now, timeout, watches);
    if (hub.failure().ok()) continue;
    if (!failed.has_value()) failed = now.counted;
    // A thread cannot be stopped from outside, and waiting for it would hang.
    CH_CHECK(now.counted - *failed <= grace)
        << "rank " << absl::StrJoin(progress.Unfinished(), ", rank ")
        << " did not come back within " << absl::FormatDuration(grace)
        << " after the run failed: " << hub.failure().ToString();
  }
}

}  // namespace

absl::Status RunLocal(int ranks, absl::FunctionRef<absl::Status(World&)> fn,
                      const JobOptions& options) {
  if (ranks < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("a run needs at least one rank, not ", ranks));
  }
  if (!options.sinks.empty() &&
      options.sinks.size() != static_cast<size_t>(ranks)) {
    return absl::InvalidArgumentError(absl::StrCat(
        options.sinks.size(), " event sinks for ", ranks, " ranks"));
  }
  CH_RETURN_IF_ERROR(CheckRun(options.timeout));
  CH_RETURN_IF_ERROR(ConnectDevices(options, ranks));
  // Work that this thread has issued completes before a rank reads it.
  RankContext::Current().Synchronize().IgnoreError();
  const int threads_per_rank = options.threads_per_rank > 0
                                   ? options.threads_per_rank
                                   : CoreShare(ranks);
  const auto hub = std::make_shared<LocalHub>(ranks);
  Progress progress(ranks);
  std::latch all_here(ranks);
  std::latch all_finished(ranks);
  // No rank begins before all threads exist.
  std::latch threads_known(1);
  bool all_started = true;

  const auto run_rank = [&](int rank) {
    threads_known.wait();
    if (!all_started) return;
    RankContext context({.world_rank = rank,
                         .world_size = ranks,
                         .backend = options.backend(rank),
                         .threads = threads_per_rank,
                         .adversarial_seed = options.test.adversarial_seed,
                         .wait_graph = &hub->graph(),
                         .sink = options.sink(rank),
                         .decorator = options.decorator(rank)});
    RankContextScope scope(&context);
    hub->Enter(context);
    all_here.arrive_and_wait();
    {
      internal::LocalControlPlane control(hub, context, options.timeout);
      internal::MemoryPlanes planes(hub);
      World world(control, planes, context);
      RunRank(world, fn).IgnoreError();  // It has failed the run.
    }
    hub->graph().SetFinished(context.host_agent());
    progress.Finish(rank);
    // Other ranks may still poison this rank's context.
    all_finished.arrive_and_wait();
    hub->Leave(rank);
  };

  std::vector<std::thread> threads;
  absl::Status started;
  for (int rank = 0; rank < ranks && started.ok(); ++rank) {
    absl::StatusOr<std::thread> thread =
        StartThread(absl::StrCat("the thread of rank ", rank, " of ", ranks),
                    [&run_rank, rank] { run_rank(rank); });
    started = thread.status();
    if (thread.ok()) threads.push_back(*std::move(thread));
  }
  all_started = started.ok();
  threads_known.count_down();
  if (all_started) Watch(*hub, ranks, progress, options.timeout);
  for (std::thread& thread : threads) thread.join();
  return all_started ? hub->failure() : started;
}

}  // namespace crosshatch
