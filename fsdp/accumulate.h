// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_FSDP_ACCUMULATE_H_
#define CROSSHATCH_FSDP_ACCUMULATE_H_

/// \file
/// Gradients of several micro-batches, reduced once.

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "crosshatch/nn/module.h"

namespace crosshatch::fsdp {

enum class AccumulateBy : uint8_t {
  /// All but the last keep their gradients unsharded, on every rank the size of
  /// the whole (gathered) parameters, and communicate none.
  kUnsharded,
  /// Each is reduced, and shards add up: the least memory.
  kShards,
};

/// Runs `micro_batch`, a forward with its Backward, for 0 to count - 1, and
/// leaves in the parameters the sum of their gradients: what each divides its
/// loss by is its own business (by the targets of all micro-batches, say).
///
/// Nothing is left to be switched back: whichever way it returns, the modules
/// are set as they were. A module that FullyShard was not called on just adds
/// up. All ranks call it with the same count.
/// \param root the outermost module that the micro-batches run.
/// \error what a micro-batch says, which ends it: gradients of those before it
///     are then there, or pending until ShardedModule::ResetIteration;
///     kInvalidArgument for a count below 1; kFailedPrecondition naming a
///     module whose gradients are set not to be reduced.
absl::Status AccumulateGradients(
    nn::Module& root, int64_t count,
    absl::FunctionRef<absl::Status(int64_t i)> micro_batch,
    AccumulateBy by = AccumulateBy::kUnsharded);

}  // namespace crosshatch::fsdp

#endif  // CROSSHATCH_FSDP_ACCUMULATE_H_
