// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/launch/launch_flags.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <optional>
#include <type_traits>
#include <utility>

#include "absl/flags/commandlineflag.h"
#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/reflection.h"
#include "absl/flags/usage_config.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "crosshatch/launch/given_flag.h"
#include "crosshatch/launch/launch_info.h"

namespace crosshatch {
namespace {

template <typename E>
using Names = std::vector<std::pair<const char*, E>>;

Names<EngineKind> NamesOf(EngineKind) {
  return {{"auto", EngineKind::kAuto},
          {"local", EngineKind::kLocal},
          {"processes", EngineKind::kProcesses},
          {"fake", EngineKind::kFake}};
}

Names<DataTransport> NamesOf(DataTransport) {
  return {{"auto", DataTransport::kAuto},
          {"mpi", DataTransport::kMpi},
          {"ucx", DataTransport::kUcx}};
}

Names<Device::Kind> NamesOf(Device::Kind) {
  return {{"cpu", Device::Kind::kCpu}, {"cuda", Device::Kind::kCuda}};
}

}  // namespace

// Abseil finds these by argument-dependent lookup.
template <typename E, typename = std::enable_if_t<std::is_enum_v<E>>>
bool AbslParseFlag(absl::string_view text, E* value, std::string* error) {
  *error = "must be one of";
  for (const auto& [name, named] : NamesOf(*value)) {
    absl::StrAppend(error, " ", name);
    if (text != name) continue;
    *value = named;
    return true;
  }
  return false;
}

template <typename E, typename = std::enable_if_t<std::is_enum_v<E>>>
std::string AbslUnparseFlag(E value) {
  for (const auto& [name, named] : NamesOf(value)) {
    if (named == value) return name;
  }
  return "?";
}

}  // namespace crosshatch

using GivenDevice = crosshatch::GivenFlag<crosshatch::Device::Kind>;
using GivenEngine = crosshatch::GivenFlag<crosshatch::EngineKind>;
using GivenNumber = crosshatch::GivenFlag<int>;
using GivenTime = crosshatch::GivenFlag<absl::Duration>;
using GivenTransport = crosshatch::GivenFlag<crosshatch::DataTransport>;

ABSL_FLAG(GivenEngine, engine, {crosshatch::EngineKind::kAuto},
          "What runs the ranks. auto: processes if mpirun, srun, torchrun or "
          "variables such as RANK started this program, else threads. local: "
          "threads of this process. processes: this process is one rank. fake: "
          "a dry run of one rank, which computes nothing.");
ABSL_FLAG(
    GivenTransport, transport, {crosshatch::DataTransport::kAuto},
    "How ranks that are processes exchange data: mpi or ucx; auto: mpi if "
    "mpirun or PMIx started them, else ucx.");
ABSL_FLAG(GivenNumber, fake_rank, {0}, "The rank that --engine=fake runs.");
ABSL_FLAG(GivenDevice, device, {crosshatch::Device::Kind::kCpu},
          "The ranks' device: cpu or cuda. The CUDA devices of a machine are "
          "dealt out to its ranks.");
ABSL_FLAG(bool, tf32, false,
          "With --device=cuda, multiply float32 matrices in TF32: 10 bits of "
          "mantissa, several times as fast.");
ABSL_FLAG(
    bool, deterministic, false,
    "Let NCCL reduce in the order of ranks: the same bits in every run and "
    "on every engine.");
ABSL_FLAG(
    GivenTime, timeout, {absl::Minutes(10)},
    "The longest time that a rank may keep the others waiting, e.g. 30s.");
ABSL_FLAG(GivenTime, start_timeout, {absl::Minutes(5)},
          "How long processes wait for all ranks of the job to start.");
ABSL_FLAG(
    GivenTime, heartbeat_timeout, {absl::Seconds(30)},
    "How long a process may send no heartbeat before it counts as dead; at "
    "most --timeout.");
ABSL_FLAG(bool, log_prefix, false,
          "Also begin the messages of rank 0 with its rank.");
ABSL_FLAG(GivenNumber, stop_status, {143},
          "The exit status of a run that SIGTERM or SIGINT has stopped.");

namespace crosshatch {
namespace {

constexpr absl::string_view kSource = "launch/launch_flags.cc";

/// Discards what this process prints in the scope.
class SilentScope {
 public:
  SilentScope() {
    const int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
    for (int file : {STDOUT_FILENO, STDERR_FILENO}) {
      saved_[file] = fcntl(file, F_DUPFD_CLOEXEC, 3);
      dup2(null, file);
    }
    close(null);
  }
  ~SilentScope() {
    std::fflush(nullptr);
    for (int file : {STDOUT_FILENO, STDERR_FILENO}) {
      dup2(saved_[file], file);
      close(saved_[file]);
    }
  }
  SilentScope(const SilentScope&) = delete;
  SilentScope& operator=(const SilentScope&) = delete;

 private:
  int saved_[3] = {};
};

template <typename T, typename V>
void Take(const absl::Flag<GivenFlag<T>>& flag, V& value) {
  const GivenFlag<T> given = absl::GetFlag(flag);
  if (given.is_given) value = given.value;
}

}  // namespace

absl::Status ParseFlags(int argc, char** argv, const std::string& source) {
  absl::FlagsUsageConfig usage;
  usage.contains_help_flags = [source](absl::string_view file) {
    return absl::EndsWith(file, source) || absl::EndsWith(file, kSource);
  };
  usage.contains_helpshort_flags = usage.contains_help_flags;
  absl::SetFlagsUsageConfig(usage);
  std::optional<SilentScope> silent;
  if (!IsFirstOfHost(LaunchEnvironment())) silent.emplace();
  const std::vector<char*> rest = absl::ParseCommandLine(argc, argv);
  if (rest.size() <= 1) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "\"", rest[1], "\" is not a flag; flags are --NAME=VALUE, see --help"));
}

std::vector<std::string> FlagValues(const std::string& source,
                                    const std::set<std::string>& except) {
  std::set<std::string> values;
  for (const auto& [name, flag] : absl::GetAllFlags()) {
    if (!absl::EndsWith(flag->Filename(), source)) continue;
    if (except.count(std::string(name)) > 0) continue;
    values.insert(absl::StrCat("--", name, "=", flag->CurrentValue()));
  }
  return {values.begin(), values.end()};
}

absl::Status ReadLaunchFlags(RunOptions& options) {
  Take(FLAGS_engine, options.engine);
  Take(FLAGS_transport, options.transport);
  Take(FLAGS_device, options.device);
  if (absl::GetFlag(FLAGS_fake_rank).is_given &&
      options.engine != EngineKind::kFake) {
    return absl::InvalidArgumentError(
        "--fake_rank is for --engine=fake: other engines run all ranks");
  }
  Take(FLAGS_fake_rank, options.fake_rank);
  if (absl::GetFlag(FLAGS_tf32)) options.cuda.tf32 = true;
  if (absl::GetFlag(FLAGS_deterministic)) options.nccl.deterministic = true;
  if (absl::GetFlag(FLAGS_log_prefix)) options.log_prefix = true;
  Take(FLAGS_timeout, options.job.timeout);
  Take(FLAGS_start_timeout, options.start_timeout);
  Take(FLAGS_heartbeat_timeout, options.heartbeat_timeout);
  Take(FLAGS_stop_status, options.stop_status);
  if (options.stop_status < 0 || options.stop_status > 255) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--stop_status=", options.stop_status, ": must be from 0 to 255"));
  }
  return absl::OkStatus();
}

}  // namespace crosshatch
