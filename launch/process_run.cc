// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/launch/process_run.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "crosshatch/base/check_failure_handler.h"
#include "crosshatch/base/process.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/base/threads.h"
#include "crosshatch/comm/coordination/coordination_client.h"
#include "crosshatch/comm/coordination/coordination_server.h"
#include "crosshatch/comm/coordination/failure_message.h"
#include "crosshatch/comm/coordination/this_process.h"
#include "crosshatch/comm/data_plane.h"
#include "crosshatch/comm/nccl/built_nccl_data_planes.h"
#include "crosshatch/comm/return_grace.h"
#include "crosshatch/launch/reachable_host.h"

namespace crosshatch {
namespace {

using coordination::CoordinationClient;
using coordination::CoordinationServer;
using coordination::Member;

/// How long a process with a wrong variable waits for rank 0, which names it:
/// it may look for rank 0 in the wrong place.
constexpr absl::Duration kNamedWithin = absl::Seconds(10);
/// How long a failed check waits for the job's report of it before it is
/// printed where it failed.
constexpr absl::Duration kReportedWithin = absl::Seconds(5);

/// Ranks that are killed together with rank 0 end within this time.
constexpr absl::Duration kKilledTogether = absl::Milliseconds(500);
/// How long a rank of a failed job stays under mpirun. At the first exit with
/// an error mpirun discards lines that it has not forwarded yet.
constexpr absl::Duration kForwardedWithin = absl::Milliseconds(200);
/// How often a call into MPI is looked after.
constexpr std::chrono::milliseconds kLook(20);

Member ThisMember(const LaunchInfo& info) {
  Member member = coordination::ThisProcess(info.rank, info.size);
  if (info.rank < 0 || info.size == 0) member.set_wrong(info.wrong);
  return member;
}

/// Waits for at most `time` for the end of a process of this machine.
/// Returns whether it still runs; one that is not reaped yet does not.
bool StillRuns(int pid, absl::Duration time) {
  const int file = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  if (file < 0) return false;
  pollfd end = {.fd = file, .events = POLLIN, .revents = 0};
  const auto ms = static_cast<int>(absl::ToInt64Milliseconds(time));
  const bool runs = poll(&end, 1, ms) == 0;
  close(file);
  return runs;
}

/// One process of a job.
class Process {
 public:
  Process(const LaunchPlan& plan, const RunOptions& options,
          const PrintLine& print)
      : info_(plan.info),
        options_(options),
        print_(print),
        self_(ThisMember(plan.info)) {
    times_.start = options.start_timeout;
    times_.heartbeat = std::min(options.heartbeat_timeout, options.job.timeout);
  }

  absl::Status Run(absl::FunctionRef<absl::Status(World&)> fn);

 private:
  /// Connects to the coordinator, which rank 0 starts, and waits for all ranks.
  absl::Status Join();
  absl::Status Listen(const RendezvousEndpoint& endpoint);
  /// Returns whether this process prints that rank 0 is lost: it is the host's
  /// lowest rank that still runs in a moment. That one ends last (AwaitHost),
  /// so that each other rank sees that it runs, whenever it notices the loss.
  bool ReportsForHost() const;
  /// Waits, if this process has reported for its host, for the end of the
  /// others.
  void AwaitHost() const;
  /// Calls `fn`, which may not return if a process is lost. Ends this process
  /// if MPI has not `done` ("started") within `time`, or once the job has
  /// failed.
  void WithinTime(absl::Duration time, const char* done, const char* cause,
                  absl::FunctionRef<void()> fn);
  absl::Status ChooseDevice();
  /// Prepares this process. Fails if one of the job has failed to, or was
  /// started with other options than rank 0.
  absl::Status Prepare();
  absl::Status RunRank(absl::FunctionRef<absl::Status(World&)> fn);
  absl::Status Report(const absl::Status& error);
  /// \param own this rank's error that no other process knows, or OK.
  void OnFailure(const FailureNotice& notice, const absl::Status& own);
  /// Returns whether no process prints `status`, with which this one ends.
  bool IsUnreported(const absl::Status& status);
  /// Reports a failed check, which may fail alike on other ranks. Returns
  /// whether the job has printed it.
  bool ReportCheck(const std::string& text);

  const LaunchInfo& info_;
  const RunOptions& options_;
  const PrintLine& print_;
  const Member self_;
  coordination::CoordinationTimes times_;
  // OnFailure or another process prints why the start failed.
  bool is_reported_ = false;
  // Ranks of this machine, ascending, and their process ids.
  std::vector<std::pair<int, int>> neighbours_;
  std::atomic<bool> has_neighbours_ = false;
  std::atomic<bool> has_reported_for_host_ = false;
  // From then on, the rank in which an error occurs reports it.
  bool has_run_ = false;
  std::atomic<bool> has_announced_ = false;
  std::atomic<bool> has_printed_own_ = false;
  // Null on the CPU.
  const DeviceBackend* device_ = nullptr;
  std::unique_ptr<DataPlanes> planes_;
  // Declared in this order, because the client must leave before the server
  // waits for all.
  std::unique_ptr<CoordinationServer> server_;
  std::unique_ptr<CoordinationClient> client_;
};

absl::Status Process::Listen(const RendezvousEndpoint& endpoint) {
  auto server = CoordinationServer::Start(endpoint.host, endpoint.port, self_,
                                          endpoint.token, times_);
  if (server.ok()) {
    server_ = *std::move(server);
    return absl::OkStatus();
  }
  const std::string text = absl::StrCat("rank 0's coordinator ",
                                        std::string(server.status().message()));
  if (absl::IsResourceExhausted(server.status())) {
    return absl::ResourceExhaustedError(text);
  }
  return absl::Status(
      server.status().code(),
      absl::StrCat(text,
                   "; give MASTER_ADDR and MASTER_PORT, or "
                   "CROSSHATCH_COORDINATOR=HOST:PORT, that are rank 0's and "
                   "free"));
}

bool Process::ReportsForHost() const {
  if (!has_neighbours_) {
    // By the launcher's numbers. Rank 0 is the first of its own host.
    return info_.is_first_of_host() ||
           (info_.is_rank() && info_.rank == 1 && info_.local_rank == 1);
  }
  for (const auto& [rank, pid] : neighbours_) {
    if (rank >= info_.rank) break;
    if (rank > 0 && StillRuns(pid, kKilledTogether)) return false;
  }
  return true;
}

void Process::AwaitHost() const {
  if (!has_reported_for_host_ || !has_neighbours_) return;
  const absl::Time until = absl::Now() + ReturnGrace(options_.job.timeout);
  for (const auto& [rank, pid] : neighbours_) {
    if (rank <= info_.rank) continue;
    StillRuns(pid, std::max(until - absl::Now(), absl::ZeroDuration()));
  }
}

void Process::WithinTime(absl::Duration time, const char* done,
                         const char* cause, absl::FunctionRef<void()> fn) {
  std::promise<void> returned;
  auto watch = StartThread("the watch over MPI", [&] {
    const absl::Time until = absl::Now() + time;
    std::future<void> end = returned.get_future();
    while (end.wait_for(kLook) != std::future_status::ready) {
      const bool has_failed = client_->failure().has_value();
      if (!has_failed && absl::Now() < until) continue;
      if (!has_failed) {
        // All ranks are late, and the coordinator joins their errors.
        Report(absl::DeadlineExceededError(absl::StrCat(
                   "MPI has not ", done, " within ", absl::FormatDuration(time),
                   " in rank ", info_.rank, " (process ", self_.pid(),
                   " on host ", self_.host(), "): ", cause)))
            .IgnoreError();
      }
      client_->Leave().IgnoreError();
      server_.reset();
      AwaitHost();
      // Destructors could wait forever.
      EndProcess("");
    }
  });
  fn();
  returned.set_value();
  // A system without a free thread fails the start anyway.
  if (watch.ok()) watch->join();
}

absl::Status Process::Join() {
  RendezvousEndpoint endpoint = info_.coordinator;
  endpoint.host = ReachableHost(endpoint.host);
  if (info_.launcher == Launcher::kOpenMpi) {
    // It has started all: none may be missing for longer than in the job.
    times_.start = std::min(times_.start, options_.job.timeout);
  }
  if (!info_.wrong.empty() && info_.rank != 0) {
    times_.start = std::min(times_.start, kNamedWithin);
  }
  // Without another rank 0 nobody else could report it.
  if (!info_.is_rank() && (info_.rank == 0 || info_.size == 1)) {
    return absl::InvalidArgumentError(info_.wrong);
  }
  coordination::ClientOptions options = {
      .times = times_, .leave = ReturnGrace(options_.job.timeout)};
  absl::Status listening;
  if (info_.rank == 0) listening = Listen(endpoint);
  if (absl::IsResourceExhausted(listening)) return listening;
  if (listening.ok()) {
    options.on_failure = [this](const FailureNotice& notice,
                                const absl::Status& own) {
      OnFailure(notice, own);
    };
  } else {
    // Another rank 0 of this job may listen there. Joining it gives the job's
    // one error.
    options.times.start = std::min(times_.start, absl::Seconds(2));
  }
  auto client = CoordinationClient::Connect(endpoint.host, endpoint.port, self_,
                                            endpoint.token, std::move(options));
  if (!client.ok()) {
    if (!listening.ok()) return listening;
    is_reported_ = !ReportsForHost();
    if (!info_.wrong.empty()) return absl::InvalidArgumentError(info_.wrong);
    return absl::Status(
        client.status().code(),
        absl::StrCat("rank 0's coordinator is not to be found: ",
                     std::string(client.status().message()),
                     "; is rank 0 started, and its address the same here?"));
  }
  client_ = *std::move(client);
  const absl::Status started = client_->AwaitStart();
  const std::optional<FailureNotice> failure = client_->failure();
  is_reported_ = failure.has_value();
  if (started.ok()) {
    neighbours_ = client_->neighbours();
    has_neighbours_ = true;
  } else if (!is_reported_ && !info_.wrong.empty()) {
    return absl::InvalidArgumentError(info_.wrong);
  }
  // A listener that was lost is not this job's coordinator.
  if (!listening.ok() && (!is_reported_ || failure->process_lost)) {
    is_reported_ = false;
    return listening;
  }
  return started;
}

void Process::OnFailure(const FailureNotice& notice, const absl::Status& own) {
  const bool lost_rank_0 = notice.process_lost && notice.world_ranks[0] == 0;
  if (info_.rank != 0 && lost_rank_0) has_reported_for_host_ = ReportsForHost();
  if (info_.rank == 0 || has_reported_for_host_) {
    print_(std::string(coordination::ResultOf(notice).message()));
  }
  if (!own.ok()) print_(std::string(own.message()));
  has_printed_own_ = !own.ok();
  has_announced_ = true;
}

absl::Status Process::Report(const absl::Status& error) {
  client_->Report({.world_ranks = {info_.rank}, .error = error});
  return error;
}

bool Process::ReportCheck(const std::string& text) {
  Report(absl::InternalError(text)).IgnoreError();
  const absl::Time until = absl::Now() + kReportedWithin;
  while (!has_announced_ && absl::Now() < until) {
    absl::SleepFor(absl::Milliseconds(5));
  }
  const std::optional<FailureNotice> failure = client_->failure();
  if (!has_announced_ || !failure.has_value()) return false;
  // The others must receive the failure before rank 0 ends.
  if (info_.rank == 0) absl::SleepFor(times_.query());
  if (has_printed_own_) return true;
  // Another rank's report serves if it is of the same check, by its place: the
  // values that follow may be the rank's.
  constexpr std::string_view kFailed = ": check failed: ";
  const size_t end = text.find(kFailed);
  return end != std::string::npos &&
         absl::StrContains(std::string(failure->error.message()),
                           text.substr(0, end + kFailed.size()));
}

absl::Status Process::ChooseDevice() {
  // If the launcher gives no local rank, CUDA_VISIBLE_DEVICES must choose.
  const int index = std::max(info_.local_rank, 0);
  CH_ASSIGN_OR_RETURN(const std::vector<const DeviceBackend*> devices,
                      FindDevices(options_, index + 1));
  if (devices.empty()) return absl::OkStatus();
  device_ = devices[static_cast<size_t>(index) % devices.size()];
  if (options_.device == Device::Kind::kCuda) {
    CH_ASSIGN_OR_RETURN(planes_, BuiltNcclDataPlanes(options_.nccl));
  }
  return absl::OkStatus();
}

absl::Status Process::Prepare() {
  absl::Status prepared = ChooseDevice();
  if (prepared.ok() && options_.prepare) {
    prepared = options_.prepare(EngineKind::kProcesses, info_.rank);
  }
  if (!prepared.ok()) return Report(prepared);
  const std::string mine = AgreedText(options_);
  CH_ASSIGN_OR_RETURN(const std::vector<std::string> of_all,
                      client_->Gather("options", info_.rank == 0 ? mine : "",
                                      options_.job.timeout));
  const absl::Status agreed = CheckAgreed(mine, of_all[0]);
  return agreed.ok() ? agreed : Report(agreed);
}

absl::Status Process::RunRank(absl::FunctionRef<absl::Status(World&)> fn) {
  CH_RETURN_IF_ERROR(Prepare());
  const bool by_ucx =
      options_.transport == DataTransport::kUcx ||
      (options_.transport == DataTransport::kAuto && !info_.mpi_knows_peers);
  int num_gathered = 0;
  const UcxJoin ucx = {.rank = info_.rank,
                       .size = info_.size,
                       .coordinator_host = client_->coordinator_host(),
                       .gather = [&](const std::string& blob) {
                         return client_->Gather(
                             absl::StrCat("ucx/", num_gathered++), blob,
                             options_.job.timeout);
                       }};
  const auto run_rank = [&](World& world) -> absl::Status {
    if (world.size() != info_.size || world.rank() != info_.rank) {
      return absl::FailedPreconditionError(absl::StrCat(
          "this process is rank ", world.rank(), " of ", world.size(),
          " for MPI and rank ", info_.rank, " of ", info_.size, " for ",
          info_.launcher_name,
          ": start with a launcher that MPI knows, as srun --mpi=pmix or "
          "mpirun"));
    }
    has_run_ = true;
    return fn(world);
  };
  if (!by_ucx) {
    absl::Status started;
    WithinTime(times_.start, "started",
               "another process of the job was lost before it had, or a host "
               "cannot reach another; --start_timeout and --timeout bound it",
               [&] { started = ExchangeByMpi("").status(); });
    CH_RETURN_IF_ERROR(started);
  }
  MpiOptions options = {.job = options_.job,
                        .planes = planes_.get(),
                        .failure_channel = client_.get(),
                        .ucx = by_ucx ? &ucx : nullptr};
  options.job.backends = {device_};
  return RunMpi(run_rank, options);
}

bool Process::IsUnreported(const absl::Status& status) {
  const std::optional<FailureNotice> failure = client_->failure();
  if (!failure.has_value()) return true;
  // The loss of a process causes many errors; and of several ranks' errors
  // before they run, the user can mend one at a time.
  if (failure->process_lost || !has_run_) return false;
  // An error caused by another's failure contains its text.
  const std::string reported(coordination::ResultOf(*failure).message());
  return !absl::IsAborted(status) &&
         !absl::StrContains(reported, std::string(status.message())) &&
         !absl::StrContains(std::string(status.message()),
                            std::string(failure->error.message()));
}

absl::Status Process::Run(absl::FunctionRef<absl::Status(World&)> fn) {
  if (const absl::Status joined = Join(); !joined.ok()) {
    if (!is_reported_) print_(std::string(joined.message()));
    AwaitHost();
    return joined;
  }
  const absl::Status ran = [&] {
    const CheckFailureHandler handler(
        [this](const std::string& text) { return ReportCheck(text); });
    return RunRank(fn);
  }();
  if (!ran.ok() && !has_run_) {
    // Others may wait for this rank.
    client_->Report(
        {.world_ranks = {info_.rank}, .cut_off = true, .error = ran});
  }
  if (ran.ok() && !client_->failure().has_value()) {
    // While the coordinator still detects lost processes.
    WithinTime(options_.job.timeout, "ended",
               "after the job a host cannot reach another any more", EndMpi);
  }
  const absl::Status left = client_->Leave();
  if (!ran.ok() && IsUnreported(ran)) print_(std::string(ran.message()));
  AwaitHost();
  if (!left.ok() && info_.launcher == Launcher::kOpenMpi) {
    absl::SleepFor(kForwardedWithin);
  }
  return left.ok() ? ran : left;
}

}  // namespace

absl::Status RunAsProcess(const LaunchPlan& plan, const RunOptions& options,
                          absl::FunctionRef<absl::Status(World&)> fn,
                          const PrintLine& print) {
  return Process(plan, options, print).Run(fn);
}

}  // namespace crosshatch
