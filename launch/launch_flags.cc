// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/launch/launch_flags.h"

#include <cstdint>
#include <cstdio>
#include <map>

#include "absl/flags/commandlineflag.h"
#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "crosshatch/base/process.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/launch/given_flag.h"
#include "crosshatch/launch/launch_plan.h"

using GivenName = crosshatch::GivenFlag<std::string>;
using GivenNumber = crosshatch::GivenFlag<int>;
using GivenTime = crosshatch::GivenFlag<absl::Duration>;
using GivenSwitch = crosshatch::GivenFlag<bool>;

ABSL_FLAG(GivenName, backend, {"auto"},
          "auto: a rank is a process where mpirun, srun, torchrun or variables "
          "such as RANK started this program, else a thread of this process. "
          "local: a thread in any case. mpi: a process. fake: a dry run of one "
          "rank, which computes nothing.");
ABSL_FLAG(GivenName, transport, {"auto"},
          "How ranks that are processes exchange data: mpi, or ucx; auto: mpi "
          "where mpirun or PMIx started them, else ucx.");
ABSL_FLAG(GivenNumber, fake_rank, {0}, "The rank that --backend=fake runs.");
ABSL_FLAG(GivenName, device, {"cpu"},
          "What ranks compute on: cpu, or cuda, to whose devices the ranks of "
          "a machine are dealt out.");
ABSL_FLAG(GivenSwitch, tf32, {false},
          "On --device=cuda products of float32 matrices round what they "
          "multiply to TF32: 10 bits of mantissa, several times as fast.");
ABSL_FLAG(GivenSwitch, deterministic, {false},
          "NCCL adds in the order of ranks: the same bits in every run and on "
          "every engine.");
ABSL_FLAG(GivenTime, timeout, {absl::Minutes(10)},
          "How long one rank may keep the others waiting, e.g. 30s.");
ABSL_FLAG(GivenTime, start_timeout, {absl::Minutes(5)},
          "How long processes wait for all ranks of the job to start.");
ABSL_FLAG(GivenTime, heartbeat_timeout, {absl::Seconds(30)},
          "How long a process may give no sign of life before it counts as "
          "dead; --timeout if that is shorter.");
ABSL_FLAG(GivenSwitch, log_prefix, {false},
          "Begin the messages of rank 0 with its rank, too.");
ABSL_FLAG(GivenNumber, stop_status, {143},
          "The exit status of a run that SIGTERM or SIGINT has stopped.");

namespace crosshatch {
namespace {

constexpr absl::string_view kSource = "launch/launch_flags.cc";

/// A flag that is true or false can be given by its name alone.
bool IsSwitch(const absl::CommandLineFlag& flag) {
  return flag.IsOfType<bool>() || flag.IsOfType<GivenSwitch>() ||
         flag.IsOfType<SwitchOrNumber>();
}

absl::Status Set(absl::CommandLineFlag& flag, const std::string& value) {
  std::string error;
  if (flag.ParseFrom(value, &error)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(error));
}

absl::Status NotAFlag(absl::string_view argument) {
  return absl::InvalidArgumentError(
      absl::StrCat("\"", argument,
                   "\" is not a flag; flags are --NAME=VALUE, and --help lists "
                   "them"));
}

/// Takes what `argv[at]`, and, for a flag without a value, the next one say.
absl::Status TakeArgument(int argc, char** argv, int& at) {
  const std::string argument = argv[at];
  const size_t begin = argument.find_first_not_of('-');
  if ((begin != 1 && begin != 2) || argument.size() == begin) {
    return NotAFlag(argument);
  }
  const size_t equals = argument.find('=');
  const std::string name = argument.substr(
      begin, equals == std::string::npos ? equals : equals - begin);
  absl::CommandLineFlag* flag = absl::FindCommandLineFlag(name);
  if (flag != nullptr && equals != std::string::npos) {
    return Set(*flag, argument.substr(equals + 1));
  }
  if (flag != nullptr && IsSwitch(*flag)) return Set(*flag, "true");
  if (flag != nullptr) {
    if (at + 1 < argc) return Set(*flag, argv[++at]);
    return absl::InvalidArgumentError(
        absl::StrCat(argument, ": its value is missing"));
  }
  if (absl::StartsWith(name, "no") && equals == std::string::npos) {
    flag = absl::FindCommandLineFlag(name.substr(2));
    if (flag != nullptr && IsSwitch(*flag)) return Set(*flag, "false");
  }
  return NotAFlag(argument);
}

template <typename T, typename V>
void Take(const absl::Flag<GivenFlag<T>>& flag, V& value) {
  const GivenFlag<T> given = absl::GetFlag(flag);
  if (given.is_given) value = given.value;
}

}  // namespace

absl::Status ParseFlags(int argc, char** argv) {
  for (int at = 1; at < argc; ++at) {
    CH_RETURN_IF_ERROR(TakeArgument(argc, argv, at));
  }
  return absl::OkStatus();
}

bool AsksForHelp(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const absl::string_view argument = argv[i];
    if (absl::StartsWith(argument, "--help") || argument == "-help" ||
        argument == "-h") {
      return true;
    }
  }
  return false;
}

int PrintHelp(const std::string& text) {
  if (!SpeaksForAll(LaunchEnvironment())) return 0;
  std::fputs(text.c_str(), stdout);
  const absl::Status written = FlushStandardOutput();
  if (written.ok()) return 0;
  std::fprintf(stderr, "%s\n", std::string(written.message()).c_str());
  return 1;
}

std::string DescribeFlags(const std::string& source) {
  std::map<std::string, const absl::CommandLineFlag*> flags;
  for (const auto& [name, flag] : absl::GetAllFlags()) {
    // Others are those of libraries that are linked in.
    if (absl::EndsWith(flag->Filename(), source) ||
        absl::EndsWith(flag->Filename(), kSource)) {
      flags[std::string(name)] = flag;
    }
  }
  std::string text;
  for (const auto& [name, flag] : flags) {
    const std::string value = flag->DefaultValue();
    absl::StrAppend(&text, "  --", name,
                    value.empty() ? "" : absl::StrCat(" (", value, ")"),
                    "\n      ", flag->Help(), "\n");
  }
  return text;
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
  const GivenName backend = absl::GetFlag(FLAGS_backend);
  if (backend.is_given) {
    CH_ASSIGN_OR_RETURN(options.backend,
                        ParseBackend(backend.value, "--backend"));
  }
  const GivenName transport = absl::GetFlag(FLAGS_transport);
  if (transport.is_given) {
    CH_ASSIGN_OR_RETURN(options.transport,
                        ParseTransport(transport.value, "--transport"));
  }
  const GivenName device = absl::GetFlag(FLAGS_device);
  if (device.is_given) {
    CH_ASSIGN_OR_RETURN(options.device, ParseDevice(device.value, "--device"));
  }
  const bool has_fake_rank = absl::GetFlag(FLAGS_fake_rank).is_given;
  if (has_fake_rank && options.backend != Backend::kFake) {
    return absl::InvalidArgumentError(
        "--fake_rank is for --backend=fake: other backends run all ranks");
  }
  Take(FLAGS_fake_rank, options.fake_rank);
  Take(FLAGS_tf32, options.cuda.tf32);
  Take(FLAGS_deterministic, options.nccl.deterministic);
  Take(FLAGS_timeout, options.timeout);
  Take(FLAGS_start_timeout, options.start_timeout);
  Take(FLAGS_heartbeat_timeout, options.heartbeat_timeout);
  Take(FLAGS_log_prefix, options.log_prefix);
  Take(FLAGS_stop_status, options.stop_status);
  if (options.stop_status < 0 || options.stop_status > 255) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--stop_status=", options.stop_status, ": must be from 0 to 255"));
  }
  return absl::OkStatus();
}

}  // namespace crosshatch
