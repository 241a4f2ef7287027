// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_REDISTRIBUTE_COUNTS_H_
#define CROSSHATCH_DTENSOR_REDISTRIBUTE_COUNTS_H_

#include <cstdint>

#include "crosshatch/dtensor/redistribute_step.h"

namespace crosshatch {

/// What a rank has redistributed so far.
struct RedistributeCounts {
  /// Calls of Redistribute and of what is made of it.
  int64_t explicit_calls = 0;
  /// For inputs of ops that lay otherwise than the op's rule asks, and for
  /// gradients. Those that only take a part of what the rank holds count too.
  int64_t implicit_calls = 0;
  /// What all these cost.
  RedistributeCost cost;
};

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_REDISTRIBUTE_COUNTS_H_
