// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/launch/run.h"

#include <errno.h>

#include <cstdio>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/launch/launch_flags.h"
#include "crosshatch/launch/launch_plan.h"
#include "crosshatch/launch/process_run.h"
#include "crosshatch/launch/stop.h"

namespace crosshatch {
namespace {

/// Prints `text` as lines of the program, in one write: lines of several
/// processes do not interleave.
void Print(const std::string& prefix, const std::string& text) {
  const std::string lines = absl::StrCat(
      prefix, program_invocation_short_name, ": ",
      absl::StrReplaceAll(text, {{"\n", absl::StrCat("\n", prefix)}}), "\n");
  std::fwrite(lines.data(), 1, lines.size(), stderr);
  std::fflush(stderr);
}

/// Returns the prefix of this process's lines: its rank, unless that is 0,
/// which reports for the job.
std::string PrefixOf(int rank, const RunOptions& options) {
  if (rank < 0 || (rank == 0 && !options.log_prefix)) return "";
  return absl::StrCat("[rank ", rank, "] ");
}

/// Runs ranks as threads of this process.
absl::Status RunHere(const LaunchPlan& plan, const RunOptions& options,
                     absl::FunctionRef<absl::Status(World&)> run_rank) {
  if (plan.engine == EngineKind::kFake) {
    CH_ASSIGN_OR_RETURN(const DeviceBackend* const device,
                        DryRunDevice(options));
    FakeOptions dry = {.world_size = plan.ranks,
                       .rank = options.fake_rank,
                       .backend = device,
                       .sink = options.job.sink(options.fake_rank)};
    // A rank with its own device is a process.
    if (device != nullptr) dry.nccl = options.nccl;
    return RunFake(dry, run_rank);
  }
  JobOptions job = options.job;
  CH_ASSIGN_OR_RETURN(job.backends, FindDevices(options, plan.ranks));
  return RunLocal(plan.ranks, run_rank, job);
}

}  // namespace

int Run(absl::FunctionRef<absl::Status(World&)> fn,
        const RunOptions& requested) {
  const Environment environment = LaunchEnvironment();
  const absl::StatusOr<LaunchPlan> plan = PlanLaunch(requested, environment);
  if (!plan.ok()) {
    // The job is unknown, so no other process can report it.
    if (IsFirstOfHost(environment)) {
      Print("", std::string(plan.status().message()));
    }
    return 1;
  }
  RunOptions options = requested;
  if (const absl::Status wrong = CheckPlan(*plan, options); !wrong.ok()) {
    // The ranks join to report it once, which needs valid times.
    const RunOptions valid;
    if (options.job.timeout <= absl::ZeroDuration()) options.job = valid.job;
    for (const auto time :
         {&RunOptions::start_timeout, &RunOptions::heartbeat_timeout}) {
      if (options.*time <= absl::ZeroDuration()) options.*time = valid.*time;
    }
    options.prepare = [wrong](EngineKind, int) { return wrong; };
    // Nothing runs, so a missing device must not hide the error.
    options.device = Device::Kind::kCpu;
  }
  // Before ranks run there is nothing to save: a signal ends the process.
  std::optional<StopSignals> signals;
  const auto run_rank = [&](World& world) -> absl::Status {
    // The one rank of this process.
    if (plan->engine == EngineKind::kProcesses) signals.emplace();
    CH_RETURN_IF_ERROR(fn(world));
    if (!signals->was_agreed() || !options.on_stop) return absl::OkStatus();
    return options.on_stop(world);
  };
  const std::string prefix = PrefixOf(plan->info.rank, options);
  absl::Status status;
  if (plan->engine == EngineKind::kProcesses) {
    status = RunAsProcess(
        *plan, options, run_rank,
        [&prefix](const std::string& text) { Print(prefix, text); });
  } else {
    if (options.prepare) status = options.prepare(plan->engine, 0);
    signals.emplace();
    if (status.ok()) status = RunHere(*plan, options, run_rank);
    if (!status.ok()) Print(prefix, std::string(status.message()));
  }
  if (!status.ok()) return 1;
  return signals.has_value() && signals->was_agreed() ? options.stop_status : 0;
}

int Run(int argc, char** argv, absl::FunctionRef<absl::Status(World&)> fn,
        RunOptions options) {
  const std::string program = argc > 0 ? argv[0] : "";
  absl::Status parsed =
      ParseFlags(argc, argv, program.substr(program.rfind('/') + 1) + ".cc");
  if (parsed.ok()) parsed = ReadLaunchFlags(options);
  if (!parsed.ok()) {
    // Deferred, so that the processes of a job report it once.
    options.prepare = [parsed](EngineKind, int) { return parsed; };
    options.device = Device::Kind::kCpu;
    options.cuda = {};
  }
  return Run(fn, options);
}

}  // namespace crosshatch
