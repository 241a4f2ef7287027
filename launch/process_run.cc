// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/launch/process_run.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "crosshatch/base/check_failure_handler.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/coordination/coordination_client.h"
#include "crosshatch/comm/coordination/coordination_server.h"
#include "crosshatch/comm/coordination/failure_message.h"
#include "crosshatch/comm/coordination/this_process.h"
#include "crosshatch/comm/data_plane.h"
#include "crosshatch/comm/end_mpi.h"
#include "crosshatch/comm/nccl/built_nccl_data_planes.h"
#include "crosshatch/comm/return_grace.h"
#include "crosshatch/launch/agreed_options.h"
#include "crosshatch/launch/device_choice.h"
#include "crosshatch/launch/meeting_file.h"
#include "crosshatch/launch/meeting_point.h"
#include "crosshatch/launch/reachable_host.h"
#include "crosshatch/launch/speaker.h"
#include "crosshatch/launch/start_deadline.h"

namespace crosshatch {
namespace {

using coordination::CoordinationClient;
using coordination::CoordinationServer;
using coordination::Member;

/// How long a rank 0 is waited for by a process that can be no rank of its job,
/// and is to be named by it: it is there, or comes about now.
constexpr absl::Duration kNamedWithin = absl::Seconds(10);
/// How long after one that finds no rank 0 the others of its host may look for
/// it, since they do not start at one time.
constexpr absl::Duration kOthersStart = absl::Seconds(5);
/// A failed check is told to the others within this, or printed where it was.
constexpr absl::Duration kTold = absl::Seconds(5);

Member ThisMember(const LaunchInfo& info) {
  Member member = coordination::ThisProcess(info.rank, info.size);
  member.set_wrong(info.outside);
  return member;
}

/// One process's part of a job.
class Process {
 public:
  Process(const LaunchPlan& plan, const RunOptions& options, const Say& say)
      : info_(plan.info),
        options_(options),
        say_(say),
        self_(ThisMember(plan.info)) {
    times_.start = options.start_timeout;
    times_.heartbeat = std::min(options.heartbeat_timeout, options.timeout);
  }

  ~Process() {
    client_.reset();
    server_.reset();
    RemoveMeetingFile();
  }

  absl::Status Run(absl::FunctionRef<absl::Status(World&)> fn);

 private:
  absl::Status RunJob(absl::FunctionRef<absl::Status(World&)> fn);
  absl::Status Meet();
  /// Makes `point`, which rank 0 is to choose, that of all processes.
  absl::Status Choose(MeetingPoint& point);
  absl::Status Connect(const MeetingPoint& point);
  void RemoveMeetingFile() const;
  /// Rank 0: listens, and puts the port that it got into `point`.
  absl::Status Listen(MeetingPoint& point);
  /// Whether this process of its host speaks, where nobody speaks for the job.
  /// \param stays how long it then does, for the others to see it.
  bool SpeaksForHost(absl::Duration stays = kSpeakerStays);
  std::string Topic() const;
  /// `text`, with which this process did not come to the job, with what is
  /// wrong here before it, since that may be why.
  std::string WithCause(const std::string& text) const;
  /// What this process waited for in vain.
  std::string LateMpi() const;
  std::string LateEnd() const;
  absl::Status OtherWorld(const std::string& says_mpi,
                          const std::string& says_launcher) const;
  /// Ends this process, which a lost one keeps in MPI, in step with the others.
  void LeaveMpi(const std::string& late);
  /// Calls `fn` in bounded time: it ends on no failure of its own.
  void WithinTime(absl::Duration time, const std::string& late,
                  absl::FunctionRef<void()> fn);
  /// Starts MPI, in bounded time, and tells all what each of them says.
  absl::StatusOr<std::vector<std::string>> StartMpi(const std::string& blob);
  absl::Status ChooseDevice();
  absl::Status Prepare();
  /// Fails where this process was started with other options than rank 0.
  absl::Status AgreeOnOptions();
  absl::Status RunRanks(absl::FunctionRef<absl::Status(World&)> fn);
  void OnFailure(const FailureNotice& notice,
                 const coordination::Roster& roster);
  bool HasOwnWord(const absl::Status& status);
  bool TellCheck(const std::string& text);

  const LaunchInfo& info_;
  const RunOptions& options_;
  const Say& say_;
  const Member self_;
  coordination::CoordinationTimes times_;
  // Why the job did not start is said by OnFailure or by another process.
  bool is_said_ = false;
  // This process speaks for its host, and stays a while for that.
  std::atomic<int> stays_ms_ = 0;
  // From then on an error is told of by the rank in which it began.
  bool has_run_ = false;
  std::atomic<bool> has_announced_ = false;
  bool has_mpi_ = false;
  std::string coordinator_host_;
  std::mutex deadline_mutex_;
  StartDeadline* deadline_ = nullptr;
  // Of --device=cuda; null on the CPU.
  const DeviceBackend* device_ = nullptr;
  std::unique_ptr<DataPlanes> planes_;
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
  const std::string text = absl::StrCat("rank 0's coordinator ",
                                        std::string(server.status().message()));
  if (absl::IsResourceExhausted(server.status())) {
    return absl::ResourceExhaustedError(text);
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
      absl::StrCat(text,
                   "; give MASTER_ADDR and MASTER_PORT, or "
                   "CROSSHATCH_COORDINATOR=HOST:PORT, that are rank 0's and "
                   "free"));
}

std::string Process::WithCause(const std::string& text) const {
  if (!info_.outside.empty()) return info_.outside;
  if (info_.wrong.empty() || absl::StrContains(text, info_.wrong)) return text;
  return absl::StrCat(info_.wrong, "; as it is, ", text);
}

std::string Process::LateMpi() const {
  return absl::StrCat(
      "MPI has not started within ", absl::FormatDuration(times_.start),
      " in rank ", info_.rank, " (process ", self_.pid(), " on host ",
      self_.host(),
      "): another process of the job was lost before it had, or a host cannot "
      "reach another; --start_timeout and --timeout bound it");
}

absl::Status Process::OtherWorld(const std::string& says_mpi,
                                 const std::string& says_launcher) const {
  return absl::FailedPreconditionError(
      absl::StrCat("MPI says that this ", says_mpi, ", and ",
                   LauncherName(info_.launcher), " ", says_launcher,
                   ": start with a launcher that MPI knows, as srun --mpi=pmix "
                   "or mpirun"));
}

std::string Process::LateEnd() const {
  return absl::StrCat(
      "MPI has not ended within ", absl::FormatDuration(options_.timeout),
      " in rank ", info_.rank, " (process ", self_.pid(), " on host ",
      self_.host(), "), after the job: a host cannot reach another any more");
}

std::string Process::Topic() const {
  return absl::StrCat("the job ",
                      info_.job.empty() ? NameOfParent() : info_.job, " at ",
                      info_.host, ":", info_.port);
}

bool Process::SpeaksForHost(absl::Duration stays) {
  const bool is_first = SpeaksFirst(Topic());
  if (is_first && info_.size != 1) {
    stays_ms_ = static_cast<int>(absl::ToInt64Milliseconds(stays));
  }
  return is_first;
}

void Process::LeaveMpi(const std::string& late) {
  if (client_ == nullptr) {
    if (SpeaksForHost()) say_(WithCause(late));
    absl::SleepFor(absl::Milliseconds(stays_ms_.load()));
    return;
  }
  if (!client_->failure().has_value()) {
    // All are late: the coordinator makes one error of it.
    client_->Report({.world_ranks = {info_.rank},
                     .error = absl::DeadlineExceededError(late)});
  }
  client_->Leave().IgnoreError();
  server_.reset();
}

void Process::WithinTime(absl::Duration time, const std::string& late,
                         absl::FunctionRef<void()> fn) {
  StartDeadline deadline(time, [&] { LeaveMpi(late); });
  {
    std::lock_guard lock(deadline_mutex_);
    deadline_ = &deadline;
  }
  if (client_ != nullptr && client_->failure().has_value()) deadline.Expire();
  fn();
  std::lock_guard lock(deadline_mutex_);
  deadline_ = nullptr;
}

absl::StatusOr<std::vector<std::string>> Process::StartMpi(
    const std::string& blob) {
  absl::StatusOr<std::vector<std::string>> told;
  WithinTime(times_.start, LateMpi(), [&] { told = ExchangeByMpi(blob); });
  has_mpi_ = true;
  return told;
}

absl::Status Process::Choose(MeetingPoint& point) {
  // All processes are there: none may be missed for longer than in the job.
  times_.start = std::min(times_.start, options_.timeout);
  const std::string& file = info_.meeting_file;
  const bool by_file = CanMeetByFile(file);
  absl::Status chosen;
  if (info_.rank == 0) chosen = Listen(point);
  // Whatever became of it, the others wait to be told.
  std::string text = info_.rank == 0 && chosen.ok() ? ToText(point) : "";
  if (by_file && info_.rank == 0) {
    const absl::Status written = WriteMeetingFile(file, text);
    if (chosen.ok()) chosen = written;
  } else if (by_file) {
    auto read = AwaitMeetingFile(file, times_.start);
    if (!read.ok()) {
      is_said_ = !SpeaksForHost();
      return absl::Status(
          read.status().code(),
          absl::StrCat("rank 0's coordinator is not to be found: ",
                       std::string(read.status().message()),
                       ": its process was lost or stopped before"));
    }
    text = *std::move(read);
  } else {
    CH_ASSIGN_OR_RETURN(const std::vector<std::string> told, StartMpi(text));
    if (static_cast<int>(told.size()) != info_.size) {
      is_said_ = !SpeaksForHost();
      return OtherWorld(absl::StrCat("is one of ", told.size()),
                        absl::StrCat("one of ", info_.size));
    }
    text = told[0];
  }
  CH_RETURN_IF_ERROR(chosen);
  if (text.empty()) {
    is_said_ = true;
    return absl::UnavailableError("rank 0 has no coordinator");
  }
  CH_ASSIGN_OR_RETURN(point, MeetingPointFromText(text));
  return absl::OkStatus();
}

void Process::RemoveMeetingFile() const {
  if (info_.rank == 0) unlink(info_.meeting_file.c_str());
}

absl::Status Process::Connect(const MeetingPoint& point) {
  coordination::ClientOptions options = {
      .times = times_,
      .leave = ReturnGrace(options_.timeout),
      .on_failure =
          [this](const FailureNotice& notice,
                 const coordination::Roster& roster) {
            OnFailure(notice, roster);
          },
      .still_hopes = [this] { return !IsSpokenOf(Topic()); }};
  auto client = CoordinationClient::Connect(point.host, point.port, self_,
                                            point.token, std::move(options));
  if (client.ok()) {
    client_ = *std::move(client);
    return absl::OkStatus();
  }
  if (IsSpokenOf(Topic())) {
    is_said_ = true;
    return client.status();
  }
  is_said_ = !SpeaksForHost();
  return absl::Status(
      client.status().code(),
      absl::StrCat(
          "rank 0's coordinator is not to be found: ",
          absl::IsDeadlineExceeded(client.status())
              ? absl::StrCat("nobody listened on ", point.host, ":", point.port,
                             " within ", absl::FormatDuration(times_.start))
              : std::string(client.status().message()),
          "; is rank 0 started, and its address the same here?"));
}

absl::Status Process::Meet() {
  MeetingPoint point = MeetingPointOf(info_);
  const bool is_chosen = IsToBeChosen(point);
  point.host = ReachableHost(point.host);
  if (!info_.outside.empty()) {
    if (info_.rank == 0 || info_.size == 1) {
      // No other rank 0 could say it, and the others look for one.
      is_said_ = !SpeaksForHost(kOthersStart);
      return absl::InvalidArgumentError(info_.outside);
    }
    times_.start = std::min(times_.start, kNamedWithin);
  }
  if (info_.may_miss_others && info_.rank != 0) {
    times_.start = std::min(times_.start, kNamedWithin);
  }
  if (is_chosen) {
    CH_RETURN_IF_ERROR(Choose(point));
  } else if (info_.rank == 0) {
    const absl::Status listening = Listen(point);
    // The others of this host need not wait for it, nor say that it is not
    // there.
    if (!listening.ok() && !is_said_) SpeaksForHost(kOthersStart);
    CH_RETURN_IF_ERROR(listening);
  }
  coordinator_host_ = point.host;
  CH_RETURN_IF_ERROR(Connect(point));
  const absl::Status started = client_->AwaitStart();
  // A rank whose token is wrong here is told no more than that it is another.
  const bool is_stranger =
      absl::IsUnauthenticated(started) && !info_.wrong.empty();
  is_said_ = client_->failure().has_value() && !is_stranger;
  // All have read it.
  if (started.ok()) RemoveMeetingFile();
  return started;
}

void Process::OnFailure(const FailureNotice& notice,
                        const coordination::Roster& roster) {
  const bool lost_rank_0 = notice.process_lost && notice.world_ranks[0] == 0;
  // Of those that are left one of each host reports the loss of rank 0, whoever
  // else is lost with it. They miss it about now; the lowest goes first.
  if (lost_rank_0 && roster.has_started) {
    absl::SleepFor(std::min(info_.rank, 20) * absl::Milliseconds(50));
  }
  if (info_.rank == 0 ||
      (lost_rank_0 &&
       SpeaksForHost(roster.has_started ? times_.interval() + kSpeakerStays
                                        : kOthersStart))) {
    say_(std::string(coordination::ResultOf(notice).message()));
  }
  has_announced_ = true;
  std::lock_guard lock(deadline_mutex_);
  if (deadline_ != nullptr) deadline_->Expire();
}

/// A check has failed in this process, and may fail in the same way in others:
/// the job says it once.
bool Process::TellCheck(const std::string& text) {
  client_->Report(
      {.world_ranks = {info_.rank}, .error = absl::InternalError(text)});
  const absl::Time until = absl::Now() + kTold;
  while (!has_announced_ && absl::Now() < until) {
    absl::SleepFor(absl::Milliseconds(5));
  }
  const std::optional<FailureNotice> failure = client_->failure();
  if (!has_announced_ || !failure.has_value()) return false;
  // The others are to hear of it before rank 0 is gone.
  if (info_.rank == 0) absl::SleepFor(times_.query());
  // That of another rank says it too where it is the same check, which is known
  // by its place: values that follow may be the rank's.
  constexpr std::string_view kFailed = ": check failed: ";
  const size_t end = text.find(kFailed);
  return end != std::string::npos &&
         absl::StrContains(std::string(failure->error.message()),
                           text.substr(0, end + kFailed.size()));
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
    CH_ASSIGN_OR_RETURN(planes_, BuiltNcclDataPlanes(options_.nccl));
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
  return client_->Gather("prepared", "", options_.timeout).status();
}

absl::Status Process::AgreeOnOptions() {
  const std::string mine = AgreedText(options_);
  CH_ASSIGN_OR_RETURN(const std::vector<std::string> of_all,
                      client_->Gather("options", info_.rank == 0 ? mine : "",
                                      options_.timeout));
  const absl::Status agreed = CheckAgreed(mine, of_all[0]);
  if (!agreed.ok()) {
    client_->Report({.world_ranks = {info_.rank}, .error = agreed});
  }
  return agreed;
}

absl::Status Process::RunRanks(absl::FunctionRef<absl::Status(World&)> fn) {
  CH_RETURN_IF_ERROR(ChooseDevice());
  CH_RETURN_IF_ERROR(Prepare());
  CH_RETURN_IF_ERROR(AgreeOnOptions());
  const bool by_ucx =
      options_.transport == DataTransport::kUcx ||
      (options_.transport == DataTransport::kAuto && !info_.mpi_knows_peers);
  int num_gathered = 0;
  const UcxJoin ucx = {.rank = info_.rank,
                       .size = info_.size,
                       .coordinator_host = coordinator_host_,
                       .gather = [&](const std::string& blob) {
                         return client_->Gather(
                             absl::StrCat("ucx/", num_gathered++), blob,
                             options_.timeout);
                       }};
  const auto run_rank = [&](World& world) -> absl::Status {
    if (world.size() != info_.size || world.rank() != info_.rank) {
      return OtherWorld(
          absl::StrCat("is rank ", world.rank(), " of ", world.size()),
          absl::StrCat("rank ", info_.rank, " of ", info_.size));
    }
    has_run_ = true;
    return fn(world);
  };
  // Where rank 0's choice was told by MPI, it is there already.
  if (!by_ucx && !has_mpi_) CH_RETURN_IF_ERROR(StartMpi("").status());
  return RunMpi(run_rank,
                {.job = {.timeout = options_.timeout, .backends = {device_}},
                 .planes = planes_.get(),
                 .failure_channel = client_.get(),
                 .ucx = by_ucx ? &ucx : nullptr});
}

/// Whether `status`, with which this process ends, is said by nobody else.
bool Process::HasOwnWord(const absl::Status& status) {
  const std::optional<FailureNotice> failure = client_->failure();
  if (!failure.has_value()) return true;
  // Without one of its processes the job fails in many ways, and of what is
  // wrong on several ranks before they run it takes one to be mended.
  if (failure->process_lost || !has_run_) return false;
  // What another's failure has caused here says so.
  const std::string said(coordination::ResultOf(*failure).message());
  return !absl::IsAborted(status) &&
         !absl::StrContains(said, std::string(status.message())) &&
         !absl::StrContains(std::string(status.message()),
                            std::string(failure->error.message()));
}

absl::Status Process::RunJob(absl::FunctionRef<absl::Status(World&)> fn) {
  if (const absl::Status met = Meet(); !met.ok()) {
    if (!is_said_) {
      say_(WithCause(std::string(met.message())));
    }
    return met;
  }
  const absl::Status ran = [&] {
    const CheckFailureHandler handler(
        [this](const std::string& text) { return TellCheck(text); });
    return RunRanks(fn);
  }();
  if (!ran.ok() && !has_run_) {
    // It has not come to the job, where others may wait for it.
    client_->Report(
        {.world_ranks = {info_.rank}, .cut_off = true, .error = ran});
  }
  if (ran.ok() && !client_->failure().has_value()) {
    // While the coordinator still sees who is lost.
    WithinTime(options_.timeout, LateEnd(), EndMpi);
  }
  const absl::Status left = client_->Leave();
  if (!ran.ok() && HasOwnWord(ran)) say_(std::string(ran.message()));
  return left.ok() ? ran : left;
}

absl::Status Process::Run(absl::FunctionRef<absl::Status(World&)> fn) {
  const absl::Status status = RunJob(fn);
  absl::SleepFor(absl::Milliseconds(stays_ms_.load()));
  return status;
}

}  // namespace

absl::Status RunAsProcess(const LaunchPlan& plan, const RunOptions& options,
                          absl::FunctionRef<absl::Status(World&)> fn,
                          const Say& say) {
  return Process(plan, options, say).Run(fn);
}

}  // namespace crosshatch
