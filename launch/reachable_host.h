// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_LAUNCH_REACHABLE_HOST_H_
#define CROSSHATCH_LAUNCH_REACHABLE_HOST_H_

#include <string>
#include <vector>

namespace crosshatch {

/// What rank 0 is to be reached by where it is said to be at `host`. Systems
/// such as Debian map a host's own name to 127.0.1.1, where no other host finds
/// it: such a name becomes the address of a network interface of this host. On
/// every other host the name means that address by itself. What is written as
/// an address, or as "localhost", stays as it is.
std::string ReachableHost(const std::string& host);

/// The choice of ReachableHost. Pure.
/// \param resolved the addresses that `host` means here; empty if it means
/// none. \param interfaces the addresses of this host, the best first.
std::string ChooseHost(const std::string& host,
                       const std::vector<std::string>& resolved,
                       const std::vector<std::string>& interfaces);

/// A host in the place before ":PORT": an IPv6 address in brackets, anything
/// else, brackets too, as it is.
std::string Bracketed(const std::string& host);

}  // namespace crosshatch

#endif  // CROSSHATCH_LAUNCH_REACHABLE_HOST_H_
