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
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "crosshatch/base/status_macros.h"

namespace crosshatch {
namespace {

constexpr int kMostRanks = 1 << 20;
constexpr int kLargestPort = 65535;

/// A launcher and its variables.
struct Variables {
  Launcher launcher;
  const char* name;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
  const char* address = "";
  const char* port = "";

  std::vector<const char*> all() const {
    return {local_rank, local_size, address, port, rank, size};
  }
};

constexpr Variables kTorchrun = {
    Launcher::kTorchrun, "torchrun",         "RANK",        "WORLD_SIZE",
    "LOCAL_RANK",        "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"};
constexpr Variables kPlain = {
    Launcher::kPlain, "a launcher of processes", "RANK",        "WORLD_SIZE",
    "LOCAL_RANK",     "LOCAL_WORLD_SIZE",        "MASTER_ADDR", "MASTER_PORT"};
constexpr Variables kMpirun = {
    Launcher::kOpenMpi,           "mpirun",
    "OMPI_COMM_WORLD_RANK",       "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"};
constexpr Variables kSrun = {Launcher::kSlurm, "srun",
                             "SLURM_PROCID",   "SLURM_STEP_NUM_TASKS",
                             "SLURM_LOCALID",  ""};

/// Returns the launcher of this process, or null.
const Variables* FindLauncher(const Environment& environment) {
  const auto has = [&](const char* name) { return environment.contains(name); };
  const auto has_any = [&](const Variables& variables) {
    const std::vector<const char*> all = variables.all();
    return std::any_of(all.begin(), all.end(), has);
  };
  if (has("TORCHELASTIC_RUN_ID")) return &kTorchrun;
  if (has_any(kMpirun)) return &kMpirun;
  if (has_any(kPlain)) return &kPlain;
  // A batch script and an interactive shell have a SLURM_JOB_ID too, and are no
  // tasks of srun.
  return has("SLURM_STEP_ID") && has("SLURM_PROCID") ? &kSrun : nullptr;
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

/// Returns a hash of a job's name (FNV-1a), for a port that other jobs are
/// unlikely to have. If they collide, the error names CROSSHATCH_COORDINATOR.
uint64_t HashOf(const std::string& job) {
  uint64_t hash = 14695981039346656037u;
  for (const char c : job) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  }
  return hash;
}

/// Returns a port that the system does not assign to clients.
int PortOf(uint64_t hash) { return static_cast<int>(20000 + hash % 10000); }

/// Returns the addresses in "ID;tcp://ADDRESS,ADDRESS:PORT;tcp6://[ADDRESS,
/// ADDRESS]:PORT", separated by commas.
std::string AddressesOf(const std::string& uri) {
  std::vector<std::string> addresses;
  for (const absl::string_view part : absl::StrSplit(uri, ';')) {
    const size_t scheme = part.find("://");
    if (scheme == absl::string_view::npos) continue;
    absl::string_view list = part.substr(scheme + 3);
    list = list.substr(0, list.rfind(':'));
    absl::ConsumePrefix(&list, "[");
    absl::ConsumeSuffix(&list, "]");
    for (const absl::string_view address :
         absl::StrSplit(list, ',', absl::SkipEmpty())) {
      addresses.push_back(Bracketed(std::string(address)));
    }
  }
  return absl::StrJoin(addresses, ",");
}

/// Returns rank 0's address under mpirun, which gives each job random bits: an
/// addresses of mpirun's host, where rank 0 is expected, or if there is only
/// one host, a loopback address that no other job has.
absl::StatusOr<RendezvousEndpoint> OpenMpiEndpoint(const Reader& reader,
                                                   const LaunchInfo& info) {
  const std::string bits = reader.Get("OMPI_MCA_orte_precondition_transports");
  const std::string job = reader.Get("PMIX_NAMESPACE");
  const std::string uri = reader.Get("OMPI_MCA_orte_hnp_uri");
  const size_t half = bits.size() / 2;
  // Other users of the host see the address, but not the token.
  const uint64_t hash =
      HashOf(absl::StrCat(bits.substr(0, half), "/", job, "/", uri));
  RendezvousEndpoint endpoint = {
      .port = PortOf(hash),
      .token = half == 0 ? absl::StrCat("job mpi/", job) : bits.substr(half)};
  if (info.local_size == info.size) {
    endpoint.host =
        absl::StrCat("127.", 1 + (hash >> 32) % 254, ".", (hash >> 40) % 256,
                     ".", 1 + (hash >> 48) % 254);
    return endpoint;
  }
  endpoint.host = AddressesOf(uri);
  if (!endpoint.host.empty() || reader.Has("CROSSHATCH_COORDINATOR")) {
    return endpoint;
  }
  return absl::InvalidArgumentError(
      "OMPI_MCA_orte_hnp_uri has no address of mpirun's host: set "
      "CROSSHATCH_COORDINATOR=HOST:PORT, an address of rank 0");
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
  return RendezvousEndpoint{.host = host,
                            .port = PortOf(HashOf(name)),
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
  info.launcher_name = variables.name;
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
  const absl::Status same = CheckSameAnswer(reader, variables, info);
  if (!endpoint.ok() || (!placed.ok() && (is_mpirun || is_srun))) {
    for (const absl::Status& read : {placed, same, endpoint.status()}) {
      CH_RETURN_IF_ERROR(read);
    }
  }
  info.coordinator = *std::move(endpoint);
  // Debian's Open MPI does not support PMI2, which Slurm may offer instead.
  info.mpi_knows_peers = is_mpirun || (is_srun && reader.Has("PMIX_RANK"));
  for (const absl::Status& read :
       {placed, local, same, ReadOurs(reader, info.coordinator)}) {
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
