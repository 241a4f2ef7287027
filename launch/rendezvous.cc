// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/launch/rendezvous.h"

#include <fcntl.h>
#include <ifaddrs.h>
#include <limits.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"

namespace crosshatch {
namespace {

std::string ThisHost() {
  char host[HOST_NAME_MAX + 1] = "";
  gethostname(host, sizeof host - 1);
  return host;
}

bool IsLoopback(const std::string& address) {
  return absl::StartsWith(address, "127.") || address == "::1";
}

/// Returns e.g. "192.0.2.7"; empty unless it is an IP address, or if it is an
/// IPv6 link-local one.
std::string Text(const sockaddr* address) {
  socklen_t size = sizeof(sockaddr_in);
  if (address->sa_family == AF_INET6) {
    const auto* six = reinterpret_cast<const sockaddr_in6*>(address);
    if (IN6_IS_ADDR_LINKLOCAL(&six->sin6_addr)) return "";
    size = sizeof(sockaddr_in6);
  } else if (address->sa_family != AF_INET) {
    return "";
  }
  char text[NI_MAXHOST] = "";
  const int failed =
      getnameinfo(address, size, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
  return failed == 0 ? text : "";
}

std::vector<std::string> Resolve(const std::string& host) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  std::vector<std::string> addresses;
  if (getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0) return addresses;
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    addresses.push_back(Text(each->ai_addr));
  }
  freeaddrinfo(found);
  return addresses;
}

/// Returns the addresses of the running interfaces in the system's order, IPv4
/// first.
std::vector<std::string> Interfaces() {
  constexpr unsigned kRuns = IFF_UP | IFF_RUNNING;
  std::vector<std::string> addresses;
  ifaddrs* found = nullptr;
  if (getifaddrs(&found) != 0) return addresses;
  for (const ifaddrs* each = found; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || (each->ifa_flags & kRuns) != kRuns ||
        (each->ifa_flags & IFF_LOOPBACK) != 0) {
      continue;
    }
    const std::string text = Text(each->ifa_addr);
    if (!text.empty()) addresses.push_back(text);
  }
  freeifaddrs(found);
  std::stable_partition(
      addresses.begin(), addresses.end(),
      [](const std::string& text) { return !absl::StrContains(text, ':'); });
  return addresses;
}

absl::Status WriteError(const std::string& path) {
  return absl::UnavailableError(
      absl::StrCat("cannot write ", path,
                   ", the rendezvous file of the processes of this host: ",
                   std::strerror(errno)));
}

}  // namespace

RendezvousEndpoint EndpointOf(const LaunchInfo& info) {
  RendezvousEndpoint endpoint = {
      .host = info.host, .port = info.port, .token = info.token};
  if (endpoint.host.empty()) {
    const bool is_one_host = info.size == 1 || info.local_size == info.size;
    endpoint.host = is_one_host ? "127.0.0.1" : ThisHost();
  }
  // Under mpirun the port is random for each job.
  if (endpoint.port == 0) return endpoint;
  if (endpoint.token.empty()) endpoint.token = absl::StrCat("job ", info.job);
  if (!info.id.empty()) absl::StrAppend(&endpoint.token, " id ", info.id);
  return endpoint;
}

absl::StatusOr<std::string> RandomToken() {
  char bytes[16];
  if (getrandom(bytes, sizeof bytes, 0) != static_cast<ssize_t>(sizeof bytes)) {
    return absl::InternalError(
        absl::StrCat("no random token for the job: ", std::strerror(errno)));
  }
  return absl::BytesToHexString(absl::string_view(bytes, sizeof bytes));
}

std::string ToText(const RendezvousEndpoint& endpoint) {
  return absl::StrCat(endpoint.port, "\n", endpoint.host, "\n", endpoint.token);
}

absl::StatusOr<RendezvousEndpoint> EndpointFromText(const std::string& text) {
  const std::vector<std::string> parts =
      absl::StrSplit(text, absl::MaxSplits('\n', 2));
  RendezvousEndpoint endpoint;
  if (parts.size() != 3 || !absl::SimpleAtoi(parts[0], &endpoint.port)) {
    return absl::InternalError(
        absl::StrCat("rank 0 sent no rendezvous endpoint but '", text, "'"));
  }
  endpoint.host = parts[1];
  endpoint.token = parts[2];
  return endpoint;
}

std::string ChooseHost(const std::string& host,
                       const std::vector<std::string>& resolved,
                       const std::vector<std::string>& interfaces) {
  const bool is_meant = host == "localhost" || IsLoopback(host);
  if (is_meant || resolved.empty() || interfaces.empty() ||
      !std::all_of(resolved.begin(), resolved.end(), IsLoopback)) {
    return host;
  }
  return Bracketed(interfaces[0]);
}

std::string ReachableHost(const std::string& host) {
  if (absl::StartsWith(host, "[")) return host;
  return ChooseHost(host, Resolve(host), Interfaces());
}

bool CanUseRendezvousFile(const std::string& path) {
  if (path.empty()) return false;
  struct stat directory = {};
  return stat(path.substr(0, path.rfind('/')).c_str(), &directory) == 0 &&
         S_ISDIR(directory.st_mode) && directory.st_uid == geteuid() &&
         (directory.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

absl::Status WriteRendezvousFile(const std::string& path,
                                 const std::string& text) {
  const std::string unfinished = path + ".new";
  const int file = open(unfinished.c_str(),
                        O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, S_IRUSR);
  if (file < 0) return WriteError(unfinished);
  const bool is_written = write(file, text.data(), text.size()) ==
                          static_cast<ssize_t>(text.size());
  close(file);
  if (!is_written || std::rename(unfinished.c_str(), path.c_str()) != 0) {
    const absl::Status error = WriteError(path);
    unlink(unfinished.c_str());
    return error;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> AwaitRendezvousFile(const std::string& path,
                                                absl::Duration timeout) {
  const absl::Time until = absl::Now() + timeout;
  absl::Duration pause = absl::Milliseconds(1);
  while (true) {
    std::ifstream file(path);
    if (file.is_open()) {
      return std::string(std::istreambuf_iterator<char>(file), {});
    }
    if (absl::Now() > until) {
      return absl::DeadlineExceededError(
          absl::StrCat("rank 0 has not written ", path, " within ",
                       absl::FormatDuration(timeout)));
    }
    absl::SleepFor(pause);
    pause = std::min(2 * pause, absl::Milliseconds(20));
  }
}

}  // namespace crosshatch
