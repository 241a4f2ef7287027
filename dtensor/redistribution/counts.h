// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_REDISTRIBUTION_COUNTS_H_
#define CROSSHATCH_DTENSOR_REDISTRIBUTION_COUNTS_H_

#include <cstdint>

#include "crosshatch/dtensor/redistribution/step.h"

namespace crosshatch {

/// What a rank has redistributed so far. Those that only take a part of what
/// the rank holds count too.
struct RedistributeCounts {
  /// Calls of Redistribute and of what is made of it.
  int64_t explicit_calls = 0;
  /// For inputs of ops that lay otherwise than the op's rule asks, and for
  /// gradients that lay otherwise than their leaves.
  int64_t implicit_calls = 0;
  /// Within ops (CommOrigin::Kind::kOp): pending reductions that they do, and
  /// gradients of redistributions.
  int64_t op_calls = 0;
  /// What all these cost.
  RedistributeCost cost;
};

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_REDISTRIBUTION_COUNTS_H_
