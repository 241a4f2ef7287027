// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_FSDP_ACCUMULATE_H_
#define CROSSHATCH_FSDP_ACCUMULATE_H_

/// \file
/// AccumulateGradients: sums the gradients of several micro-batches.

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "crosshatch/nn/module.h"

namespace crosshatch::fsdp {

/// Where the gradients of micro-batches accumulate.
enum class AccumulateBy : uint8_t {
  /// In unsharded gradients, which take the size of the whole (gathered)
  /// parameters on every rank. Only the last micro-batch communicates.
  kUnsharded,
  /// In sharded gradients: every micro-batch is reduced. Takes the least
  /// memory.
  kShards,
};

/// Calls `micro_batch`, which runs a forward and its Backward, for i = 0 to
/// count - 1. Leaves the sum of the gradients in the parameters. The program
/// divides the losses, e.g. by the number of targets in all micro-batches.
///
/// The modules' settings are restored on every return. If `root` has no sharded
/// modules, gradients simply add up. All ranks must call it with the same
/// count.
/// \param root the outermost module that the micro-batches run.
/// \error The error of a micro-batch, after which no other runs. Gradients of
///     earlier ones are in the parameters, or pending until
///     ShardedModule::ResetIteration.
/// \error kInvalidArgument if count is below 1.
/// \error kFailedPrecondition naming a module whose settings disable reduction.
absl::Status AccumulateGradients(
    nn::Module& root, int64_t count,
    absl::FunctionRef<absl::Status(int64_t i)> micro_batch,
    AccumulateBy by = AccumulateBy::kUnsharded);

}  // namespace crosshatch::fsdp

#endif  // CROSSHATCH_FSDP_ACCUMULATE_H_
