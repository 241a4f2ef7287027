// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_LAUNCH_REACHABLE_HOST_H_
#define CROSSHATCH_LAUNCH_REACHABLE_HOST_H_

#include <string>
#include <vector>

namespace crosshatch {

/// Returns a name or address by which other hosts reach rank 0 at `host`.
/// Systems such as Debian map a host's own name to 127.0.1.1; such a name is
/// replaced by the address of a network interface. Addresses, lists of them and
/// "localhost" are returned unchanged.
std::string ReachableHost(const std::string& host);

/// Chooses ReachableHost's result. Pure.
/// \param resolved the addresses that `host` resolves to here.
/// \param interfaces the addresses of this host, the best first.
std::string ChooseHost(const std::string& host,
                       const std::vector<std::string>& resolved,
                       const std::vector<std::string>& interfaces);

}  // namespace crosshatch

#endif  // CROSSHATCH_LAUNCH_REACHABLE_HOST_H_
