// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/launch/reachable_host.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>

#include <algorithm>
#include <vector>

#include "absl/strings/match.h"
#include "crosshatch/launch/launch_info.h"

namespace crosshatch {
namespace {

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

}  // namespace

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
  if (absl::StartsWith(host, "[") || absl::StrContains(host, ',')) return host;
  return ChooseHost(host, Resolve(host), Interfaces());
}

}  // namespace crosshatch
