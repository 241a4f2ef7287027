// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_BASE_CORE_SHARE_H_
#define CROSSHATCH_BASE_CORE_SHARE_H_

/// \file
/// The number of threads for each of several processes or ranks on a machine.

#include <bitset>
#include <cstddef>
#include <vector>

namespace crosshatch {

/// Cores of a machine, by number. Trivially copyable, so that processes can
/// share it in memory.
using CoreSet = std::bitset<1024>;

/// Returns the cores that the calling thread may run on, which mpirun, taskset
/// and others restrict. Returns all cores if the system does not report them.
CoreSet AllowedCores();

/// Returns the threads for each of `sharers` (at least 1) that share the cores
/// of the calling thread: cores / sharers, at least 1.
int CoreShare(int sharers);

/// Returns the threads for the sharer at index `self`, at least 1, if each has
/// its own set of cores. A core in several sets is divided equally among them.
int CoreShare(const std::vector<CoreSet>& sharers, size_t self);

}  // namespace crosshatch

#endif  // CROSSHATCH_BASE_CORE_SHARE_H_
