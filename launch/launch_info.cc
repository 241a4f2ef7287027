// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/launch/launch_info.h"

#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <tuple>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"

namespace crosshatch {
namespace {

constexpr const char* kVariables[] = {
    "CROSSHATCH_COORDINATOR",
    "CROSSHATCH_JOB_ID",
    "CROSSHATCH_JOB_TOKEN",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_MCA_orte_precondition_transports",
    "PMIX_NAMESPACE",
    "PMIX_RANK",
    "PMIX_SERVER_TMPDIR",
    "RANK",
    "SLURM_JOB_ID",
    "SLURM_LOCALID",
    "SLURM_NTASKS",
    "SLURM_PROCID",
    "SLURM_STEP_ID",
    "SLURM_STEP_NODELIST",
    "SLURM_STEP_NUM_TASKS",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_RUN_ID",
    "WORLD_SIZE",
};

constexpr int kMostRanks = 1 << 20;
constexpr int kLargestPort = 65535;

/// Reads the variables of one launcher; errors name the wrong one.
class Reader {
 public:
  Reader(const Environment& environment, Launcher launcher)
      : environment_(environment), launcher_(launcher) {}

  bool Has(const std::string& name) const {
    return environment_.contains(name);
  }

  absl::StatusOr<std::string> Text(const std::string& name) const {
    const auto found = environment_.find(name);
    if (found != environment_.end() && !found->second.empty()) {
      return found->second;
    }
    return absl::InvalidArgumentError(absl::StrCat(
        name, found == environment_.end() ? " is not set" : " is empty",
        ", which ", LauncherName(launcher_), " sets next to ", Seen(name),
        ": set it, or unset all of them to run alone"));
  }

  /// Reads an integer of at least `least` and at most `most`.
  absl::StatusOr<int> Number(const std::string& name, int least,
                             int most) const {
    CH_ASSIGN_OR_RETURN(const std::string text, Text(name));
    int number = 0;
    if (absl::SimpleAtoi(text, &number) && number >= least && number <= most) {
      return number;
    }
    return absl::InvalidArgumentError(
        absl::StrCat(name, "=", text, ": must be a whole number from ", least,
                     " to ", most));
  }

  /// Reads `rank` of `size` ranks.
  absl::Status RankOf(const std::string& rank_name,
                      const std::string& size_name, int& rank,
                      int& size) const {
    CH_ASSIGN_OR_RETURN(size, Number(size_name, 1, kMostRanks));
    CH_ASSIGN_OR_RETURN(const std::string text, Text(rank_name));
    const bool is_rank = absl::SimpleAtoi(text, &rank) && rank >= 0;
    if (is_rank && rank < size) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(rank_name, "=", text, ": must be a rank from 0 to ",
                     size - 1, ", since ", size_name, "=", size));
  }

  /// Like RankOf if one of the two variables is set; otherwise sets nothing.
  absl::Status LocalRankOf(const std::string& rank_name,
                           const std::string& size_name,
                           LaunchInfo& info) const {
    if (!Has(rank_name) && !Has(size_name)) return absl::OkStatus();
    CH_RETURN_IF_ERROR(
        RankOf(rank_name, size_name, info.local_rank, info.local_size));
    if (info.local_size <= info.size) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        size_name, "=", info.local_size, ": a host cannot have more than the ",
        info.size, " processes of the job"));
  }

 private:
  /// Returns a variable of the launcher that is set.
  std::string Seen(const std::string& missing) const {
    for (const char* name : kVariables) {
      const auto found = environment_.find(name);
      if (found == environment_.end() || name == missing) continue;
      const std::string variable = name;
      const bool is_ompi = variable.starts_with("OMPI_COMM_");
      const bool is_slurm = variable.starts_with("SLURM_");
      const bool is_ours = variable.starts_with("CROSSHATCH_") ||
                           variable.starts_with("PMIX_") ||
                           variable.starts_with("OMPI_MCA_");
      const bool fits = launcher_ == Launcher::kOpenMpi ? is_ompi
                        : launcher_ == Launcher::kSlurm
                            ? is_slurm
                            : !is_ompi && !is_slurm && !is_ours;
      if (fits) return absl::StrCat(name, "=", found->second);
    }
    return "others";
  }

  const Environment& environment_;
  const Launcher launcher_;
};

std::string Get(const Environment& environment, const std::string& name) {
  const auto found = environment.find(name);
  return found == environment.end() ? "" : found->second;
}

/// Records an error of this rank, except in its number. The first one counts.
void NoteWrong(const absl::Status& status, LaunchInfo& info) {
  if (info.wrong.empty()) info.wrong = std::string(status.message());
}

/// Returns a path in mpirun's directory for the job. The job's random bits
/// distinguish it from a leftover file of an earlier job.
std::string RendezvousFile(const Environment& environment,
                           const LaunchInfo& info) {
  const std::string directory = Get(environment, "PMIX_SERVER_TMPDIR");
  const std::string job = Get(environment, "PMIX_NAMESPACE");
  const std::string bits =
      Get(environment, "OMPI_MCA_orte_precondition_transports");
  if (info.local_size != info.size || directory.empty() || job.empty() ||
      bits.empty()) {
    return "";
  }
  return absl::StrCat(directory, "/crosshatch-", job, "-", bits);
}

absl::Status ReadOpenMpi(const Environment& environment, LaunchInfo& info) {
  const Reader reader(environment, Launcher::kOpenMpi);
  info.mpi_knows_peers = true;
  CH_RETURN_IF_ERROR(reader.RankOf(
      "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", info.rank, info.size));
  const absl::Status local = reader.LocalRankOf(
      "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", info);
  if (!local.ok()) {
    NoteWrong(local, info);
    info.local_rank = -1;
    // The local size determines whether the rendezvous is by file.
    const auto size = reader.Number("OMPI_COMM_WORLD_LOCAL_SIZE", 1, info.size);
    info.local_size = size.value_or(-1);
    info.may_miss_others = !size.ok();
  }
  const std::string job = Get(environment, "PMIX_NAMESPACE");
  if (!job.empty()) info.job = absl::StrCat("mpi/", job);
  info.rendezvous_file = RendezvousFile(environment, info);
  return absl::OkStatus();
}

absl::Status ReadPlainAddress(const Environment& environment,
                              const Reader& reader, int ports_above,
                              LaunchInfo& info) {
  CH_ASSIGN_OR_RETURN(const std::string host, reader.Text("MASTER_ADDR"));
  info.host = Bracketed(host);
  CH_ASSIGN_OR_RETURN(
      const int port,
      reader.Number("MASTER_PORT", 1, kLargestPort - ports_above));
  info.port = port + ports_above;
  info.job = absl::StrCat(info.host, ":", port);
  for (const char* name :
       {"TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"}) {
    const auto found = environment.find(name);
    if (found != environment.end()) {
      absl::StrAppend(&info.job, "/", found->second);
    }
  }
  return absl::OkStatus();
}

absl::Status ReadPlainLocalRank(const Reader& reader, LaunchInfo& info) {
  if (reader.Has("LOCAL_WORLD_SIZE")) {
    return reader.LocalRankOf("LOCAL_RANK", "LOCAL_WORLD_SIZE", info);
  }
  if (!reader.Has("LOCAL_RANK")) return absl::OkStatus();
  return reader.Number("LOCAL_RANK", 0, info.size - 1).status();
}

absl::Status ReadPlain(const Environment& environment, Launcher launcher,
                       LaunchInfo& info) {
  const Reader reader(environment, launcher);
  const absl::Status placed =
      reader.RankOf("RANK", "WORLD_SIZE", info.rank, info.size);
  // torchrun's agent listens on the port itself.
  const absl::Status found = ReadPlainAddress(
      environment, reader, launcher == Launcher::kTorchrun ? 1 : 0, info);
  if (!found.ok()) return placed.ok() ? found : placed;
  if (!placed.ok()) {
    info.outside = std::string(placed.message());
    info.rank = reader.Number("RANK", 0, kMostRanks).value_or(-1);
    info.size = reader.Number("WORLD_SIZE", 1, kMostRanks).value_or(0);
    return absl::OkStatus();
  }
  const absl::Status local = ReadPlainLocalRank(reader, info);
  if (!local.ok()) {
    NoteWrong(local, info);
    info.local_rank = info.local_size = -1;
  } else if (reader.Has("LOCAL_RANK")) {
    info.local_rank = *reader.Number("LOCAL_RANK", 0, info.size - 1);
  }
  return absl::OkStatus();
}

absl::Status ReadSlurm(const Environment& environment, LaunchInfo& info) {
  const Reader reader(environment, Launcher::kSlurm);
  const char* size = reader.Has("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS"
                                                        : "SLURM_NTASKS";
  CH_RETURN_IF_ERROR(reader.RankOf("SLURM_PROCID", size, info.rank, info.size));
  if (reader.Has("SLURM_LOCALID")) {
    const auto local = reader.Number("SLURM_LOCALID", 0, info.size - 1);
    NoteWrong(local.status(), info);
    info.local_rank = local.value_or(-1);
  }
  // Slurm may use PMI2, which Debian's Open MPI does not.
  info.mpi_knows_peers = reader.Has("PMIX_RANK");
  if (info.mpi_knows_peers) {
    const std::string pmix = Get(environment, "PMIX_RANK");
    if (pmix != absl::StrCat(info.rank)) {
      NoteWrong(absl::InvalidArgumentError(absl::StrCat(
                    "PMIX_RANK=", pmix, " and SLURM_PROCID=", info.rank,
                    ": srun gives both the same rank; unset PMIX_RANK if it "
                    "is left from another job")),
                info);
    }
  }
  CH_ASSIGN_OR_RETURN(const std::string job, reader.Text("SLURM_JOB_ID"));
  CH_ASSIGN_OR_RETURN(const std::string step, reader.Text("SLURM_STEP_ID"));
  CH_ASSIGN_OR_RETURN(const std::string nodes,
                      reader.Text("SLURM_STEP_NODELIST"));
  info.job = absl::StrCat("slurm/", job, "/", step);
  info.host = FirstHost(nodes);
  if (info.host.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("SLURM_STEP_NODELIST=", nodes,
                     ": names no host; it must be a list "
                     "such as node[01-04]"));
  }
  // A hash of the job gives steps on one host different ports most of the time.
  // If they collide, the error names CROSSHATCH_COORDINATOR.
  uint32_t hash = 2166136261u;
  for (const char c : info.job) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  }
  info.port = static_cast<int>(20000 + hash % 10000);
  return absl::OkStatus();
}

absl::Status CheckSameAnswer(const Environment& environment,
                             const LaunchInfo& info) {
  for (const auto& [plain, ompi, value] :
       {std::tuple("RANK", "OMPI_COMM_WORLD_RANK", info.rank),
        std::tuple("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", info.size)}) {
    const auto found = environment.find(plain);
    if (found == environment.end() || found->second == absl::StrCat(value)) {
      continue;
    }
    return absl::InvalidArgumentError(
        absl::StrCat(plain, "=", found->second, " and ", ompi, "=", value,
                     ": two launchers disagree; unset ", plain,
                     ", or start without mpirun"));
  }
  return absl::OkStatus();
}

absl::Status ReadToken(const Environment& environment, LaunchInfo& info) {
  info.id = Get(environment, "CROSSHATCH_JOB_ID");
  const auto token = environment.find("CROSSHATCH_JOB_TOKEN");
  if (token == environment.end()) return absl::OkStatus();
  if (token->second.empty()) {
    return absl::InvalidArgumentError(
        "CROSSHATCH_JOB_TOKEN is empty: give it a secret, the same on all "
        "ranks, or unset it");
  }
  info.token = token->second;
  return absl::OkStatus();
}

absl::Status ReadCoordinator(const Environment& environment, LaunchInfo& info) {
  const auto address = environment.find("CROSSHATCH_COORDINATOR");
  if (address == environment.end()) return absl::OkStatus();
  const size_t colon = address->second.rfind(':');
  int port = 0;
  if (colon == std::string::npos || colon == 0 ||
      !absl::SimpleAtoi(address->second.substr(colon + 1), &port) || port < 1 ||
      port > kLargestPort) {
    return absl::InvalidArgumentError(absl::StrCat(
        "CROSSHATCH_COORDINATOR=", address->second,
        ": must be HOST:PORT of rank 0, with a port from 1 to ", kLargestPort));
  }
  info.host = Bracketed(address->second.substr(0, colon));
  info.port = port;
  return absl::OkStatus();
}

absl::Status ReadLauncher(const Environment& environment, LaunchInfo& info) {
  const auto has_one_of = [&](std::initializer_list<const char*> names) {
    for (const char* name : names) {
      if (environment.contains(name)) return true;
    }
    return false;
  };
  const bool is_ompi =
      has_one_of({"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"});
  if (has_one_of({"TORCHELASTIC_RUN_ID"})) {
    info.launcher = Launcher::kTorchrun;
  } else if (is_ompi) {
    info.launcher = Launcher::kOpenMpi;
  } else if (has_one_of({"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
                         "MASTER_ADDR", "MASTER_PORT"})) {
    info.launcher = Launcher::kPlain;
  } else if (has_one_of({"SLURM_STEP_ID"}) && has_one_of({"SLURM_PROCID"})) {
    // A batch script and an interactive shell have a SLURM_JOB_ID too, and are
    // no tasks of srun.
    info.launcher = Launcher::kSlurm;
  }
  switch (info.launcher) {
    case Launcher::kNone:
      return absl::OkStatus();
    case Launcher::kOpenMpi:
      CH_RETURN_IF_ERROR(ReadOpenMpi(environment, info));
      NoteWrong(CheckSameAnswer(environment, info), info);
      return absl::OkStatus();
    case Launcher::kTorchrun:
    case Launcher::kPlain:
      return ReadPlain(environment, info.launcher, info);
    case Launcher::kSlurm:
      return ReadSlurm(environment, info);
  }
  return absl::InternalError("no such launcher");
}

}  // namespace

const char* LauncherName(Launcher launcher) {
  switch (launcher) {
    case Launcher::kNone:
      return "nobody";
    case Launcher::kOpenMpi:
      return "mpirun";
    case Launcher::kSlurm:
      return "srun";
    case Launcher::kTorchrun:
      return "torchrun";
    case Launcher::kPlain:
      return "a launcher of processes";
  }
  return "?";
}

Environment LaunchEnvironment() {
  Environment environment;
  for (const char* name : kVariables) {
    const char* value = std::getenv(name);
    if (value != nullptr) environment[name] = value;
  }
  return environment;
}

std::string FirstHost(const std::string& nodes) {
  // Takes the first number of each list in brackets; a name may have several
  // lists. A comma outside of brackets ends the first name.
  std::string host;
  size_t at = 0;
  while (at < nodes.size() && nodes[at] != ',') {
    if (nodes[at] != '[') {
      host += nodes[at++];
      continue;
    }
    const size_t end = nodes.find(']', at);
    const size_t number_end = nodes.find_first_of(",-]", at);
    if (end == std::string::npos || number_end == at + 1) return "";
    host += nodes.substr(at + 1, number_end - at - 1);
    at = end + 1;
  }
  return host;
}

bool IsFirstOfHost(const Environment& environment) {
  for (const char* name :
       {"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"}) {
    int rank = 0;
    const auto found = environment.find(name);
    if (found != environment.end() && absl::SimpleAtoi(found->second, &rank)) {
      return rank <= 0;
    }
  }
  return true;
}

absl::StatusOr<LaunchInfo> DetectLaunch(const Environment& environment) {
  LaunchInfo info;
  info.is_first_of_host = IsFirstOfHost(environment);
  CH_RETURN_IF_ERROR(ReadLauncher(environment, info));
  for (const absl::Status& read :
       {ReadToken(environment, info), ReadCoordinator(environment, info)}) {
    NoteWrong(read, info);
    if (!read.ok()) info.may_miss_others = true;
  }
  return info;
}

std::string Bracketed(const std::string& host) {
  const bool is_bare = absl::StrContains(host, ':') && host[0] != '[';
  return is_bare ? absl::StrCat("[", host, "]") : host;
}

}  // namespace crosshatch
