// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/ucx/ucx_settings.h"

#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"

namespace crosshatch::internal {
namespace {

uint64_t Namespace(const char* kind) {
  struct stat found = {};
  const std::string path = absl::StrCat("/proc/self/ns/", kind);
  return stat(path.c_str(), &found) == 0 ? found.st_ino : 0;
}

/// Returns the name of this machine's network interface by which `host` is
/// reached; empty if there is none.
std::string InterfaceTo(absl::string_view host) {
  absl::ConsumePrefix(&host, "[");
  absl::ConsumeSuffix(&host, "]");
  addrinfo hints = {};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* target = nullptr;
  // Any port: nothing is sent.
  if (getaddrinfo(std::string(host).c_str(), "9", &hints, &target) != 0) {
    return "";
  }
  sockaddr_storage own = {};
  socklen_t own_size = sizeof own;
  const int probe = socket(target->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  const bool found =
      connect(probe, target->ai_addr, target->ai_addrlen) == 0 &&
      getsockname(probe, reinterpret_cast<sockaddr*>(&own), &own_size) == 0;
  if (probe >= 0) close(probe);
  freeaddrinfo(target);
  ifaddrs* interfaces = nullptr;
  if (!found || getifaddrs(&interfaces) != 0) return "";
  const auto text_of = [](const sockaddr* address) {
    char text[NI_MAXHOST] = "";
    const socklen_t size = address->sa_family == AF_INET6 ? sizeof(sockaddr_in6)
                                                          : sizeof(sockaddr_in);
    getnameinfo(address, size, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
    return std::string(text);
  };
  const std::string wanted = text_of(reinterpret_cast<sockaddr*>(&own));
  std::string name;
  for (const ifaddrs* each = interfaces; each != nullptr;
       each = each->ifa_next) {
    const sockaddr* const address = each->ifa_addr;
    if (address == nullptr || address->sa_family != own.ss_family) continue;
    if (text_of(address) == wanted) name = each->ifa_name;
  }
  freeifaddrs(interfaces);
  return name;
}

/// Returns the ports of RDMA devices, as UCX names them.
std::vector<std::string> RdmaPorts() {
  std::vector<std::string> ports;
  std::error_code none;
  const std::filesystem::path devices = "/sys/class/infiniband";
  for (const auto& device :
       std::filesystem::directory_iterator(devices, none)) {
    for (const auto& port :
         std::filesystem::directory_iterator(device.path() / "ports", none)) {
      ports.push_back(absl::StrCat(device.path().filename().string(), ":",
                                   port.path().filename().string()));
    }
  }
  return ports;
}

}  // namespace

bool ProcessLocation::IsOnMachineOf(const ProcessLocation& other) const {
  return std::strcmp(machine, other.machine) == 0;
}

bool ProcessLocation::SharesNetwork(const ProcessLocation& other) const {
  return IsOnMachineOf(other) && network_namespace == other.network_namespace;
}

bool ProcessLocation::SharesMemory(const ProcessLocation& other) const {
  return SharesNetwork(other) &&
         std::equal(std::begin(access), std::end(access), other.access);
}

ProcessLocation ThisLocation(const char* ucx_version) {
  ProcessLocation location = {};
  std::ifstream("/proc/sys/kernel/random/boot_id")
      .getline(location.machine, sizeof location.machine);
  std::strncpy(location.ucx_version, ucx_version,
               sizeof location.ucx_version - 1);
  location.network_namespace = Namespace("net");
  location.access[0] = geteuid();
  location.access[1] = Namespace("pid");
  location.access[2] = Namespace("user");
  location.access[3] = Namespace("ipc");
  location.cores = AllowedCores();
  return location;
}

std::vector<UcxSetting> UcxSettings(
    const std::vector<ProcessLocation>& locations,
    const std::string& coordinator_host) {
  std::vector<UcxSetting> settings = {
      // The coordinator finds dead processes.
      {"KEEPALIVE_INTERVAL", "inf"},
      // Up to this size, two copies are faster than a handshake.
      {"RNDV_THRESH", "128k"}};
  bool one_network = true;
  bool share_memory = true;
  for (const ProcessLocation& a : locations) {
    one_network = one_network && a.SharesNetwork(locations[0]);
    for (const ProcessLocation& b : locations) {
      share_memory = share_memory && (!a.IsOnMachineOf(b) || a.SharesMemory(b));
    }
  }
  if (one_network) {
    settings.push_back({"TLS", share_memory ? "self,posix,cma" : "self,tcp"});
    settings.push_back({"NET_DEVICES", "lo"});
    return settings;
  }
  if (!share_memory) settings.push_back({"TLS", "^sm"});
  const std::string interface = InterfaceTo(coordinator_host);
  if (!interface.empty()) {
    std::vector<std::string> devices = RdmaPorts();
    devices.push_back(interface);
    settings.push_back({"NET_DEVICES", absl::StrJoin(devices, ",")});
  }
  return settings;
}

}  // namespace crosshatch::internal
