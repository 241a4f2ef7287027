// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/launch/launch_info.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/coordination/wire.h"

namespace crosshatch {
namespace {

constexpr int kMostRanks = 1 << 20;
constexpr int kLargestPort = 65535;

/// A launcher and its variables.
struct Variables {
  Launcher launcher;
  const char* name;
  const char* local_rank;
  const char* local_size;
  const char* rank;
  const char* size;
  std::vector<const char*> others;
  /// The launcher started a process that has all of these; if there are none,
  /// one that has any of the above.
  std::vector<const char*> signs;

  std::vector<const char*> all() const {
    std::vector<const char*> all = {local_rank, local_size};
    all.insert(all.end(), others.begin(), others.end());
    all.insert(all.end(), {rank, size});
    return all;
  }
};

/// In the order in which they count.
const std::vector<Variables>& Launchers() {
  static const auto& launchers = *new std::vector<Variables>{
      {Launcher::kTorchrun,
       "torchrun",
       "LOCAL_RANK",
       "LOCAL_WORLD_SIZE",
       "RANK",
       "WORLD_SIZE",
       {"MASTER_ADDR", "MASTER_PORT"},
       {"TORCHELASTIC_RUN_ID"}},
      {Launcher::kOpenMpi,
       "mpirun",
       "OMPI_COMM_WORLD_LOCAL_RANK",
       "OMPI_COMM_WORLD_LOCAL_SIZE",
       "OMPI_COMM_WORLD_RANK",
       "OMPI_COMM_WORLD_SIZE",
       {},
       {}},
      {Launcher::kPlain,
       "a launcher of processes",
       "LOCAL_RANK",
       "LOCAL_WORLD_SIZE",
       "RANK",
       "WORLD_SIZE",
       {"MASTER_ADDR", "MASTER_PORT"},
       {}},
      // A batch script and an interactive shell have a SLURM_JOB_ID too, and
      // are no tasks of srun.
      {Launcher::kSlurm,
       "srun",
       "SLURM_LOCALID",
       "",
       "SLURM_PROCID",
       "SLURM_STEP_NUM_TASKS",
       {"SLURM_JOB_ID"},
       {"SLURM_STEP_ID", "SLURM_PROCID"}}};
  return launchers;
}

/// Returns the launcher of this process, or null.
const Variables* FindLauncher(const Environment& environment) {
  const auto has = [&](const char* name) { return environment.contains(name); };
  for (const Variables& each : Launchers()) {
    const std::vector<const char*> all = each.all();
    if (each.signs.empty()
            ? std::any_of(all.begin(), all.end(), has)
            : std::all_of(each.signs.begin(), each.signs.end(), has)) {
      return &each;
    }
  }
  return nullptr;
}

/// Reads the variables of one launcher; errors name the wrong one.
class Reader {
 public:
  Reader(const Environment& environment, const Variables& variables)
      : environment_(environment), variables_(variables) {}

  bool Has(const std::string& name) const {
    return environment_.contains(name);
  }

  /// Returns the variable; empty if it is not set.
  std::string Get(const std::string& name) const {
    return Has(name) ? environment_.at(name) : "";
  }

  absl::StatusOr<std::string> Text(const std::string& name) const {
    if (const std::string text = Get(name); !text.empty()) return text;
    std::string seen = "others";
    for (const char* each : variables_.all()) {
      if (name == each || !Has(each)) continue;
      seen = absl::StrCat(each, "=", Get(each));
      break;
    }
    return absl::InvalidArgumentError(
        absl::StrCat(name, Has(name) ? " is empty" : " is not set", ", which ",
                     variables_.name, " sets next to ", seen,
                     ": set it, or unset all of them to run alone"));
  }

  /// Returns a whole number of at least `least` and at most `most`.
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

  /// Sets `rank` and `size`; -1 and 0 if they are not known.
  absl::Status RankOf(const std::string& rank_name,
                      const std::string& size_name, int& rank,
                      int& size) const {
    rank = Number(rank_name, 0, kMostRanks).value_or(-1);
    size = 0;
    CH_ASSIGN_OR_RETURN(size, Number(size_name, 1, kMostRanks));
    CH_ASSIGN_OR_RETURN(const std::string text, Text(rank_name));
    if (rank >= 0 && rank < size) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(rank_name, "=", text, ": must be a rank from 0 to ",
                     size - 1, ", since ", size_name, "=", size));
  }

 private:
  const Environment& environment_;
  const Variables& variables_;
};

/// Sets the place among the processes of this host, also if it is wrong.
absl::Status ReadLocalRank(const Reader& reader, const Variables& variables,
                           LaunchInfo& info) {
  const char* const rank = variables.local_rank;
  const char* const size = variables.local_size;
  if (!reader.Has(size)) {
    if (!reader.Has(rank)) return absl::OkStatus();
    info.local_rank = reader.Number(rank, 0, kMostRanks).value_or(-1);
    return reader.Number(rank, 0, std::max(info.size, 1) - 1).status();
  }
  CH_RETURN_IF_ERROR(
      reader.RankOf(rank, size, info.local_rank, info.local_size));
  if (info.local_size <= info.size) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      size, "=", info.local_size, ": a host cannot have more than the ",
      info.size, " processes of the job"));
}

/// Returns rank 0's address under mpirun, which gives each job random bits.
absl::StatusOr<RendezvousEndpoint> OpenMpiEndpoint(const Reader& reader,
                                                   const LaunchInfo& info) {
  const bool is_one_host = info.local_size == info.size;
  const std::string bits = reader.Get("OMPI_MCA_orte_precondition_transports");
  const size_t half = bits.size() / 2;
  if (half == 0) {
    return RendezvousEndpoint{
        .host = is_one_host ? "127.0.0.1" : "",
        .token = absl::StrCat("job mpi/", reader.Get("PMIX_NAMESPACE"))};
  }
  RendezvousEndpoint endpoint = {.token = bits.substr(half)};
  // Other users of the host see the names of sockets, but not the token.
  if (is_one_host) {
    endpoint.host = absl::StrCat(coordination::kAbstractSocket, "crosshatch-",
                                 bits.substr(0, half));
  }
  return endpoint;
}

absl::StatusOr<RendezvousEndpoint> PlainEndpoint(const Reader& reader,
                                                 Launcher launcher) {
  // torchrun's agent listens on the port itself.
  const int ports_above = launcher == Launcher::kTorchrun ? 1 : 0;
  CH_ASSIGN_OR_RETURN(const std::string host, reader.Text("MASTER_ADDR"));
  CH_ASSIGN_OR_RETURN(
      const int port,
      reader.Number("MASTER_PORT", 1, kLargestPort - ports_above));
  RendezvousEndpoint endpoint = {.host = Bracketed(host),
                                 .port = port + ports_above};
  endpoint.token = absl::StrCat("job ", endpoint.host, ":", port);
  for (const char* name :
       {"TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"}) {
    if (reader.Has(name)) {
      absl::StrAppend(&endpoint.token, "/", reader.Get(name));
    }
  }
  return endpoint;
}

absl::StatusOr<RendezvousEndpoint> SlurmEndpoint(const Reader& reader) {
  CH_ASSIGN_OR_RETURN(const std::string job, reader.Text("SLURM_JOB_ID"));
  CH_ASSIGN_OR_RETURN(const std::string step, reader.Text("SLURM_STEP_ID"));
  CH_ASSIGN_OR_RETURN(const std::string nodes,
                      reader.Text("SLURM_STEP_NODELIST"));
  const std::string name = absl::StrCat("slurm/", job, "/", step);
  const std::string host = FirstHost(nodes);
  if (host.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("SLURM_STEP_NODELIST=", nodes,
                     ": names no host; it must be a list "
                     "such as node[01-04]"));
  }
  // A hash of the job gives steps on one host different ports most of the time.
  // If they collide, the error names CROSSHATCH_COORDINATOR.
  uint32_t hash = 2166136261u;
  for (const char c : name) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  }
  return RendezvousEndpoint{.host = host,
                            .port = static_cast<int>(20000 + hash % 10000),
                            .token = absl::StrCat("job ", name)};
}

/// Checks variables that another launcher may have left.
absl::Status CheckSameAnswer(const Reader& reader, const Variables& variables,
                             const LaunchInfo& info) {
  for (const auto& [launcher, other, own, value] :
       {std::tuple(Launcher::kOpenMpi, "RANK", variables.rank, info.rank),
        std::tuple(Launcher::kOpenMpi, "WORLD_SIZE", variables.size, info.size),
        std::tuple(Launcher::kSlurm, "PMIX_RANK", variables.rank, info.rank)}) {
    if (launcher != info.launcher || !reader.Has(other) ||
        reader.Get(other) == absl::StrCat(value)) {
      continue;
    }
    return absl::InvalidArgumentError(
        absl::StrCat(other, "=", reader.Get(other), " and ", own, "=", value,
                     ": two launchers disagree; unset ", other,
                     ", or start without ", variables.name));
  }
  return absl::OkStatus();
}

/// Applies the variables of ours.
absl::Status ReadOurs(const Reader& reader, RendezvousEndpoint& endpoint) {
  absl::Status wrong;
  if (const std::string token = reader.Get("CROSSHATCH_JOB_TOKEN");
      !token.empty()) {
    endpoint.token = token;
  } else if (reader.Has("CROSSHATCH_JOB_TOKEN")) {
    wrong = absl::InvalidArgumentError(
        "CROSSHATCH_JOB_TOKEN is empty: give it a secret, the same on all "
        "ranks, or unset it");
  }
  if (const std::string id = reader.Get("CROSSHATCH_JOB_ID"); !id.empty()) {
    absl::StrAppend(&endpoint.token, " id ", id);
  }
  if (!reader.Has("CROSSHATCH_COORDINATOR")) return wrong;
  const std::string text = reader.Get("CROSSHATCH_COORDINATOR");
  const auto address = ParseEndpoint(text);
  if (address.ok()) {
    endpoint.host = address->host;
    endpoint.port = address->port;
  } else if (wrong.ok()) {
    wrong = absl::InvalidArgumentError(absl::StrCat(
        "CROSSHATCH_COORDINATOR=", text,
        ": must be HOST:PORT of rank 0, with a port from 1 to ", kLargestPort));
  }
  return wrong;
}

}  // namespace

const char* LauncherName(Launcher launcher) {
  for (const Variables& each : Launchers()) {
    if (each.launcher == launcher) return each.name;
  }
  return "nobody";
}

Environment LaunchEnvironment() {
  Environment environment;
  for (char** each = environ; *each != nullptr; ++each) {
    const std::string variable = *each;
    const size_t name = variable.find('=');
    if (name == std::string::npos) continue;
    environment[variable.substr(0, name)] = variable.substr(name + 1);
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
  const Variables* const launcher = FindLauncher(environment);
  int rank = 0;
  return launcher == nullptr || !environment.contains(launcher->local_rank) ||
         !absl::SimpleAtoi(environment.at(launcher->local_rank), &rank) ||
         rank <= 0;
}

absl::StatusOr<LaunchInfo> DetectLaunch(const Environment& environment) {
  LaunchInfo info;
  const Variables* const found = FindLauncher(environment);
  if (found == nullptr) return info;
  Variables variables = *found;
  info.launcher = variables.launcher;
  const bool is_mpirun = info.launcher == Launcher::kOpenMpi;
  const bool is_srun = info.launcher == Launcher::kSlurm;
  const Reader reader(environment, variables);
  if (is_srun && !reader.Has(variables.size)) {
    variables.size = "SLURM_NTASKS";  // Of an old Slurm.
  }
  const absl::Status placed =
      reader.RankOf(variables.rank, variables.size, info.rank, info.size);
  const absl::Status local = ReadLocalRank(reader, variables, info);
  auto endpoint = is_mpirun ? OpenMpiEndpoint(reader, info)
                  : is_srun ? SlurmEndpoint(reader)
                            : PlainEndpoint(reader, info.launcher);
  if (!placed.ok() && (is_mpirun || is_srun || !endpoint.ok())) return placed;
  CH_RETURN_IF_ERROR(endpoint.status());
  info.coordinator = *std::move(endpoint);
  // PMI2, which Slurm may speak instead, is not what Debian's Open MPI speaks.
  info.mpi_knows_peers = is_mpirun || (is_srun && reader.Has("PMIX_RANK"));
  for (const absl::Status& read :
       {placed, local, CheckSameAnswer(reader, variables, info),
        ReadOurs(reader, info.coordinator)}) {
    if (info.wrong.empty()) info.wrong = std::string(read.message());
  }
  return info;
}

absl::StatusOr<RendezvousEndpoint> ParseEndpoint(const std::string& text) {
  const size_t colon = text.rfind(':');
  int port = 0;
  if (colon == std::string::npos || colon == 0 ||
      !absl::SimpleAtoi(text.substr(colon + 1), &port) || port < 1 ||
      port > kLargestPort) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text, "' is not HOST:PORT"));
  }
  return RendezvousEndpoint{.host = Bracketed(text.substr(0, colon)),
                            .port = port};
}

std::string Bracketed(const std::string& host) {
  const bool is_bare = absl::StrContains(host, ':') && host[0] != '[';
  return is_bare ? absl::StrCat("[", host, "]") : host;
}

}  // namespace crosshatch
