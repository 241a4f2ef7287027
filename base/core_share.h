// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_BASE_CORE_SHARE_H_
#define CROSSHATCH_BASE_CORE_SHARE_H_

#include <algorithm>
#include <thread>

namespace crosshatch {

/// Threads for each of `sharers` (at least 1) that share the cores of this
/// machine: the cores / sharers, at least 1.
inline int CoreShare(int sharers) {
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  return std::max(1, cores / sharers);
}

}  // namespace crosshatch

#endif  // CROSSHATCH_BASE_CORE_SHARE_H_
