// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_UCX_UCX_SETTINGS_H_
#define CROSSHATCH_COMM_UCX_UCX_SETTINGS_H_

/// \file
/// The settings of UCX for a job: which transports and network interfaces it
/// may use.

#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "crosshatch/base/threads.h"

namespace crosshatch::internal {

/// Where a process runs. Processes exchange it as bytes.
struct ProcessLocation {
  char machine[40];
  char ucx_version[16];
  uint64_t network_namespace;
  /// The user, and the namespaces of processes, users and IPC. Processes share
  /// memory only if these are equal.
  uint64_t access[4];
  CoreSet cores;

  bool IsOnMachineOf(const ProcessLocation& other) const;
  bool SharesNetwork(const ProcessLocation& other) const;
  /// Includes the network, because sleeping processes are woken through sockets
  /// of the network namespace.
  bool SharesMemory(const ProcessLocation& other) const;
};
static_assert(std::is_trivially_copyable_v<ProcessLocation>);

/// Returns the location of this process.
ProcessLocation ThisLocation(const char* ucx_version);

struct UcxSetting {
  /// Without the prefix "UCX_".
  const char* name;
  std::string value;
};

/// Returns the settings for a job whose processes are at `locations`. A
/// variable of the environment overrides each.
/// \param coordinator_host see UcxJoin
std::vector<UcxSetting> UcxSettings(
    const std::vector<ProcessLocation>& locations,
    const std::string& coordinator_host);

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_COMM_UCX_UCX_SETTINGS_H_
