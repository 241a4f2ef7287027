// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_BASE_CORE_SHARE_H_
#define CROSSHATCH_BASE_CORE_SHARE_H_

/// \file
/// How many threads each of several takes on one machine.

#include <bitset>
#include <cstddef>
#include <vector>

namespace crosshatch {

/// Cores of a machine by their numbers; what others can read as plain memory.
using CoreSet = std::bitset<1024>;

/// What the calling thread may run on, which mpirun, taskset and others
/// restrict to less than the machine has. Where the system does not say, the
/// machine.
CoreSet AllowedCores();

/// Threads for each of `sharers` (at least 1) that share what the calling
/// thread may run on: those cores / sharers, at least 1.
int CoreShare(int sharers);

/// Threads for the one of index `self` where each may run on cores of its own:
/// a core counts in equal parts for all that may run on it; at least 1.
int CoreShare(const std::vector<CoreSet>& sharers, size_t self);

}  // namespace crosshatch

#endif  // CROSSHATCH_BASE_CORE_SHARE_H_
