// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/launch/run.h"

#include <errno.h>

#include <cstdio>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/launch/device_choice.h"
#include "crosshatch/launch/launch_flags.h"
#include "crosshatch/launch/launch_plan.h"
#include "crosshatch/launch/process_run.h"
#include "crosshatch/launch/speaker.h"
#include "crosshatch/launch/stop.h"

namespace crosshatch {
namespace {

/// Prints `text` as lines of the program, in one write, so that those of
/// several processes do not mix.
void Print(const std::string& prefix, const std::string& text) {
  const std::string lines = absl::StrCat(
      prefix, program_invocation_short_name, ": ",
      absl::StrReplaceAll(text, {{"\n", absl::StrCat("\n", prefix)}}), "\n");
  std::fwrite(lines.data(), 1, lines.size(), stderr);
  std::fflush(stderr);
}

/// What this process's line begins with: the rank, unless it is rank 0, which
/// speaks for the job.
std::string PrefixOf(int rank, const RunOptions& options) {
  if (rank < 0 || (rank == 0 && !options.log_prefix)) return "";
  return absl::StrCat("[rank ", rank, "] ");
}

/// Prints what keeps this process from knowing which job it is of. What started
/// it may have started others that fail alike, of which one of this host
/// speaks.
void SayWithoutPlan(const std::string& text) {
  const Environment environment = LaunchEnvironment();
  if (environment.empty()) {
    // A user has, or several in one shell: no job.
    Print("", text);
    return;
  }
  // Numbers are what ranks differ in.
  std::string topic = absl::StrCat("processes of ", NameOfParent(), ", ",
                                   program_invocation_short_name, " without ");
  for (const char c : text) {
    if (!absl::ascii_isdigit(static_cast<unsigned char>(c))) topic += c;
  }
  if (!SpeaksFirst(topic)) return;
  Print("", text);
  for (const char* size : {"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE"}) {
    const auto found = environment.find(size);
    if (found != environment.end() && found->second == "1") return;
  }
  absl::SleepFor(kSpeakerStays);
}

/// Ranks of this process alone.
absl::Status RunHere(const LaunchPlan& plan, const RunOptions& options,
                     absl::FunctionRef<absl::Status(World&)> run_rank) {
  if (plan.backend == Backend::kFake) {
    CH_ASSIGN_OR_RETURN(const DeviceBackend* const device,
                        ChooseDeviceOfDryRun(options));
    FakeOptions dry = {
        .world_size = plan.ranks, .rank = options.fake_rank, .backend = device};
    // A rank on a device of its own is a process.
    if (device != nullptr) dry.nccl = options.nccl;
    return RunFake(dry, run_rank);
  }
  CH_ASSIGN_OR_RETURN(const std::vector<const DeviceBackend*> devices,
                      ChooseDevices(options, plan.ranks));
  return RunLocal(plan.ranks, run_rank,
                  {.timeout = options.timeout, .backends = devices});
}

}  // namespace

int Run(absl::FunctionRef<absl::Status(World&)> fn, const RunOptions& asked) {
  const absl::StatusOr<LaunchPlan> plan =
      PlanLaunch(asked, LaunchEnvironment());
  if (!plan.ok()) {
    SayWithoutPlan(std::string(plan.status().message()));
    return 1;
  }
  RunOptions options = asked;
  if (const absl::Status wrong = CheckPlan(*plan, asked); !wrong.ok()) {
    // It takes times that are right to meet and say it.
    const RunOptions right;
    for (const auto time : {&RunOptions::timeout, &RunOptions::start_timeout,
                            &RunOptions::heartbeat_timeout}) {
      if (options.*time <= absl::ZeroDuration()) options.*time = right.*time;
    }
    options.prepare = [wrong](Backend, int) { return wrong; };
    // Nothing runs, and what it lacks is not to be said first.
    options.device = Device::Kind::kCpu;
  }
  const StopSignals signals;
  std::optional<EndsByStopSignal> waiting;
  const auto run_rank = [&](World& world) -> absl::Status {
    if (waiting.has_value()) waiting.reset();
    CH_RETURN_IF_ERROR(fn(world));
    if (!signals.was_agreed() || !options.on_stop) return absl::OkStatus();
    return options.on_stop(world);
  };
  const std::string prefix = PrefixOf(plan->info.rank, options);
  absl::Status status;
  if (plan->backend == Backend::kMpi) {
    // Reset by the one rank of this process.
    waiting.emplace();
    status = RunAsProcess(
        *plan, options, run_rank,
        [&prefix](const std::string& text) { Print(prefix, text); });
  } else {
    if (options.prepare) status = options.prepare(plan->backend, 0);
    if (status.ok()) status = RunHere(*plan, options, run_rank);
    if (!status.ok()) Print(prefix, std::string(status.message()));
  }
  if (!status.ok()) return 1;
  return signals.was_agreed() ? options.stop_status : 0;
}

int Run(int argc, char** argv, absl::FunctionRef<absl::Status(World&)> fn,
        RunOptions options) {
  if (AsksForHelp(argc, argv)) {
    const std::string program = argc > 0 ? argv[0] : "";
    return PrintHelp(
        DescribeFlags(program.substr(program.rfind('/') + 1) + ".cc"));
  }
  absl::Status parsed = ParseFlags(argc, argv);
  if (parsed.ok()) parsed = ReadLaunchFlags(options);
  if (!parsed.ok()) {
    // Processes of a job are to say it once.
    options.prepare = [parsed](Backend, int) { return parsed; };
    options.device = Device::Kind::kCpu;
    options.cuda = {};
  }
  return Run(fn, options);
}

}  // namespace crosshatch
