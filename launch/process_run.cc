// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/launch/process_run.h"

#include <unistd.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/base/core_share.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/coordination/coordination_client.h"
#include "crosshatch/comm/coordination/coordination_server.h"
#include "crosshatch/comm/coordination/failure_message.h"
#include "crosshatch/comm/coordination/this_process.h"
#include "crosshatch/comm/device_mover.h"
#include "crosshatch/comm/nccl/built_nccl_movers.h"
#include "crosshatch/launch/device_choice.h"
#include "crosshatch/launch/meeting_point.h"
#include "crosshatch/launch/reachable_host.h"
#include "crosshatch/launch/speaker.h"
#include "crosshatch/launch/start_deadline.h"

namespace crosshatch {
namespace {

using coordination::CoordinationClient;
using coordination::CoordinationServer;
using coordination::Member;

/// One process's part of a job.
class Process {
 public:
  Process(const LaunchPlan& plan, const RunOptions& options, const Say& say)
      : info_(plan.info),
        options_(options),
        say_(say),
        self_(coordination::ThisProcess(plan.info.rank, plan.info.size)) {
    times_.start = options.start_timeout;
    times_.heartbeat = std::min(options.heartbeat_timeout, options.timeout);
  }

  absl::Status Run(absl::FunctionRef<absl::Status(World&)> fn);

 private:
  absl::Status Meet();
  /// Rank 0: listens, and puts the port that it got into `point`.
  absl::Status Listen(MeetingPoint& point);
  /// What this process waited for in vain.
  std::string LateMpi() const;
  /// Starts MPI, in bounded time, and tells all what each of them says.
  absl::StatusOr<std::vector<std::string>> StartMpi(const std::string& blob,
                                                    const MpiJoin* join);
  absl::Status ChooseDevice();
  absl::Status Prepare();
  /// Fails where this process would move data in another way than rank 0: what
  /// one sends the other would not understand.
  absl::Status AgreeOnData();
  absl::Status RunRanks(absl::FunctionRef<absl::Status(World&)> fn);
  void OnFailure(const FailureNotice& notice,
                 const coordination::Roster& roster);
  bool HasOwnWord(const absl::Status& status);

  const LaunchInfo& info_;
  const RunOptions& options_;
  const Say& say_;
  const Member self_;
  coordination::CoordinationTimes times_;
  // Why the job did not start is said by OnFailure or by another process.
  bool is_said_ = false;
  // From then on an error is told of by the rank in which it began.
  bool has_run_ = false;
  // Of --device=cuda; null on the CPU.
  const DeviceBackend* device_ = nullptr;
  std::unique_ptr<DeviceMovers> movers_;
  // In this order: the client leaves before the server waits for all to have.
  std::unique_ptr<CoordinationServer> server_;
  std::unique_ptr<CoordinationClient> client_;
};

absl::Status Process::Listen(MeetingPoint& point) {
  if (point.token.empty()) {
    CH_ASSIGN_OR_RETURN(point.token, RandomToken());
  }
  auto server = CoordinationServer::Start(point.host, point.port, self_,
                                          point.token, times_);
  if (server.ok()) {
    server_ = *std::move(server);
    point.port = server_->port();
    return absl::OkStatus();
  }
  // Another rank 0 of this job may be there: as its client this process brings
  // about the one error of the job.
  const auto twin = CoordinationClient::Connect(
      point.host, point.port, self_, point.token,
      {.times = {.start = std::min(times_.start, absl::Seconds(2)),
                 .heartbeat = times_.heartbeat}});
  if (twin.ok()) {
    const absl::Status started = (*twin)->AwaitStart();
    const std::optional<FailureNotice> failure = (*twin)->failure();
    // One that is lost was no coordinator of this job.
    if (failure.has_value() && !failure->process_lost) {
      is_said_ = true;
      return started;
    }
  }
  return absl::Status(
      server.status().code(),
      absl::StrCat("rank 0's coordinator ",
                   std::string(server.status().message()),
                   "; give MASTER_ADDR and MASTER_PORT, or "
                   "CROSSHATCH_COORDINATOR=HOST:PORT, that are rank 0's and "
                   "free"));
}

std::string Process::LateMpi() const {
  return absl::StrCat(
      "MPI has not started within ", absl::FormatDuration(times_.start),
      " in rank ", info_.rank, " (process ", self_.pid(), " on host ",
      self_.host(),
      "): another process of the job was lost before it had, or a host cannot "
      "reach another; --start_timeout and --timeout bound it");
}

absl::StatusOr<std::vector<std::string>> Process::StartMpi(
    const std::string& blob, const MpiJoin* join) {
  // MPI's start ends on no failure of its own.
  const StartDeadline deadline(times_.start, [this] {
    if (client_ == nullptr) {
      say_(LateMpi());
      return;
    }
    // All are late: the coordinator makes one error of it.
    client_->Report({.world_ranks = {info_.rank},
                     .error = absl::DeadlineExceededError(LateMpi())});
    client_->Leave().IgnoreError();
    server_.reset();
  });
  return ExchangeByMpi(blob, join);
}

absl::Status Process::Meet() {
  MeetingPoint point = MeetingPointOf(info_);
  const bool is_chosen = IsToBeChosen(point);
  point.host = ReachableHost(point.host);
  // It is there to be named, which takes rank 0 no time once it is.
  if (!info_.outside.empty()) {
    times_.start = std::min(times_.start, absl::Seconds(10));
  }
  // All processes are there: none may be missed for longer than in the job.
  if (is_chosen) times_.start = std::min(times_.start, options_.timeout);
  absl::Status listening;
  if (info_.rank == 0) {
    listening = Listen(point);
    if (!is_chosen) CH_RETURN_IF_ERROR(listening);
  }
  if (is_chosen) {
    std::vector<std::string> told;
    // Whatever became of it, the others wait to be told.
    CH_ASSIGN_OR_RETURN(
        told, StartMpi(info_.rank == 0 && listening.ok() ? ToText(point) : "",
                       /*join=*/nullptr));
    CH_RETURN_IF_ERROR(listening);
    if (told[0].empty()) {
      is_said_ = true;
      return absl::UnavailableError("rank 0 has no coordinator");
    }
    CH_ASSIGN_OR_RETURN(point, MeetingPointFromText(told[0]));
  }
  auto client = CoordinationClient::Connect(
      point.host, point.port, self_, point.token,
      {.times = times_,
       .leave = options_.timeout,
       .on_failure = [this](const FailureNotice& notice,
                            const coordination::Roster& roster) {
         OnFailure(notice, roster);
       }});
  if (!client.ok()) {
    is_said_ =
        info_.outside.empty() && !SpeaksOfNobody(info_.rank, info_.local_rank);
    return absl::Status(
        client.status().code(),
        absl::StrCat("rank 0's coordinator is not to be found: ",
                     std::string(client.status().message()),
                     "; is rank 0 started, and its address the same here?"));
  }
  client_ = *std::move(client);
  const absl::Status started = client_->AwaitStart();
  is_said_ = client_->failure().has_value();
  return started;
}

void Process::OnFailure(const FailureNotice& notice,
                        const coordination::Roster& roster) {
  const bool lost_rank_0 = notice.process_lost && notice.world_ranks[0] == 0;
  bool speaks = info_.rank == 0;
  if (lost_rank_0 && !speaks) {
    speaks = roster.has_started
                 ? SpeaksWithoutRank0(info_.rank, roster.first_elsewhere)
                 : SpeaksOfNobody(info_.rank, info_.local_rank);
  }
  if (speaks) say_(std::string(coordination::ResultOf(notice).message()));
}

absl::Status Process::ChooseDevice() {
  if (options_.device != Device::Kind::kCuda) return absl::OkStatus();
  // Where the launcher does not say which of a machine's processes this is,
  // CUDA_VISIBLE_DEVICES has to.
  const int index = std::max(info_.local_rank, 0);
  const auto choose = [&]() -> absl::Status {
    CH_ASSIGN_OR_RETURN(const std::vector<const DeviceBackend*> devices,
                        ChooseDevices(options_, index + 1));
    device_ = devices.back();
    CH_ASSIGN_OR_RETURN(movers_, BuiltNcclMovers(options_.nccl));
    return absl::OkStatus();
  };
  const absl::Status chosen = choose();
  if (!chosen.ok()) {
    client_->Report({.world_ranks = {info_.rank}, .error = chosen});
  }
  return chosen;
}

absl::Status Process::Prepare() {
  if (!options_.prepare) return absl::OkStatus();
  const absl::Status prepared = options_.prepare(Backend::kMpi, info_.rank);
  if (!prepared.ok()) {
    client_->Report({.world_ranks = {info_.rank}, .error = prepared});
    return prepared;
  }
  return client_->EnterBarrier("prepared", options_.timeout);
}

absl::Status Process::AgreeOnData() {
  const bool is_cuda = options_.device == Device::Kind::kCuda;
  std::string mine =
      absl::StrCat("--device=", is_cuda ? "cuda" : "cpu",
                   options_.nccl.deterministic ? " --deterministic" : "");
  if (is_cuda) {
    absl::StrAppend(&mine, ", NCCL's own collectives from ",
                    options_.nccl.least_collective_bytes, " bytes on");
  }
  if (info_.rank == 0) return client_->Put("data", mine);
  CH_ASSIGN_OR_RETURN(const std::string of_first,
                      client_->Get("data", options_.timeout));
  if (mine == of_first) return absl::OkStatus();
  const absl::Status differs = absl::InvalidArgumentError(
      absl::StrCat("it runs with ", mine, ", and rank 0 with ", of_first,
                   ": start all ranks with the same"));
  client_->Report({.world_ranks = {info_.rank}, .error = differs});
  return differs;
}

absl::Status Process::RunRanks(absl::FunctionRef<absl::Status(World&)> fn) {
  CH_RETURN_IF_ERROR(ChooseDevice());
  CH_RETURN_IF_ERROR(Prepare());
  CH_RETURN_IF_ERROR(AgreeOnData());
  const MpiJoin join = {
      .rank = info_.rank,
      .size = info_.size,
      .put = [this](
                 const std::string& key,
                 const std::string& value) { return client_->Put(key, value); },
      .get =
          [this](const std::string& key) {
            return client_->Get(key, options_.timeout);
          }};
  const auto run_rank = [&](World& world) -> absl::Status {
    has_run_ = true;
    if (world.size() != info_.size || world.rank() != info_.rank) {
      return absl::FailedPreconditionError(
          absl::StrCat("MPI says that this is rank ", world.rank(), " of ",
                       world.size(), ", and ", LauncherName(info_.launcher),
                       " rank ", info_.rank, " of ", info_.size,
                       ": start with a launcher that MPI knows, as srun "
                       "--mpi=pmix or mpirun"));
    }
    return fn(world);
  };
  // Where rank 0's choice was told by MPI, it is there already.
  if (!IsToBeChosen(MeetingPointOf(info_))) {
    CH_RETURN_IF_ERROR(
        StartMpi("", info_.mpi_knows_peers ? nullptr : &join).status());
  }
  // Processes that join do not see which of them share a machine.
  const int threads = info_.mpi_knows_peers || info_.local_size < 1
                          ? 0
                          : CoreShare(info_.local_size);
  return RunMpi(run_rank, {.threads_per_rank = threads,
                           .timeout = options_.timeout,
                           .backend = device_,
                           .movers = movers_.get(),
                           .failure_channel = client_.get(),
                           .join = info_.mpi_knows_peers ? nullptr : &join});
}

/// Whether `status`, with which this process ends, is said by nobody else.
bool Process::HasOwnWord(const absl::Status& status) {
  const std::optional<FailureNotice> failure = client_->failure();
  if (!failure.has_value()) return true;
  // Without one of its processes the job fails in many ways.
  if (failure->process_lost) return false;
  // What another's failure has caused here says so.
  const std::string said(coordination::ResultOf(*failure).message());
  return !absl::IsAborted(status) &&
         !absl::StrContains(said, std::string(status.message())) &&
         !absl::StrContains(std::string(status.message()),
                            std::string(failure->error.message()));
}

absl::Status Process::Run(absl::FunctionRef<absl::Status(World&)> fn) {
  if (const absl::Status met = Meet(); !met.ok()) {
    if (!is_said_) {
      say_(info_.outside.empty() ? std::string(met.message()) : info_.outside);
    }
    return met;
  }
  const absl::Status ran = RunRanks(fn);
  if (!ran.ok() && !has_run_) {
    // It has not come to the job, where others may wait for it.
    client_->Report(
        {.world_ranks = {info_.rank}, .cut_off = true, .error = ran});
  }
  const absl::Status left = client_->Leave();
  if (!ran.ok() && HasOwnWord(ran)) say_(std::string(ran.message()));
  return left.ok() ? ran : left;
}

}  // namespace

absl::Status RunAsProcess(const LaunchPlan& plan, const RunOptions& options,
                          absl::FunctionRef<absl::Status(World&)> fn,
                          const Say& say) {
  return Process(plan, options, say).Run(fn);
}

}  // namespace crosshatch
