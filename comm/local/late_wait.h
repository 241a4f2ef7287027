// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_LOCAL_LATE_WAIT_H_
#define CROSSHATCH_COMM_LOCAL_LATE_WAIT_H_

/// \file
/// Which of several waits that take too long keeps the others waiting.

#include <cstddef>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"

namespace crosshatch::internal {

/// Members of a group that wait for others of it.
struct LateWait {
  /// For messages, e.g. "group 'tp' (ranks 0, 1)".
  std::string group;
  absl::Duration age;
  /// Whether all have come to the collective and the missing ones have not come
  /// to its end. Those wait for no other group.
  bool met = false;
  /// World ranks that wait, and whom they wait for.
  std::vector<int> waiting;
  std::vector<int> missing;
  /// Who does what, e.g. "rank 0 came to ..., rank 1 did not come".
  std::string text;
};

/// The index of the one in which the fault is to be looked for; `late` is not
/// empty. First, the oldest whose members have met. Else the oldest whose
/// missing ranks wait in none of the others; else the oldest of all.
size_t RootOf(absl::Span<const LateWait> late);

/// Says for people what RootOf found, and what waits besides.
std::string DescribeLate(absl::Span<const LateWait> late,
                         absl::Duration timeout);

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_COMM_LOCAL_LATE_WAIT_H_
