// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_ACTIVATION_CHECKPOINT_H_
#define CROSSHATCH_NN_ACTIVATION_CHECKPOINT_H_

/// \file
/// Activation checkpointing of a module: time for memory.

#include <optional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/module.h"

namespace crosshatch::nn {

struct ActivationCheckpointOptions {
  /// A mesh of one axis. Of inputs that are DTensors replicated over it, each
  /// rank keeps only its shard. Backward gathers each input once
  /// (split_saved.h), so inputs take 1 / ranks of the memory. Styles that split
  /// activations between blocks (SequenceParallel) leave nothing to shard.
  std::optional<DeviceMesh> split_inputs_over = std::nullopt;
};

/// Makes `module` keep its inputs for backward instead of its activations;
/// backward runs its forward again (tensor/recompute.h). Gradients have the
/// same bits. Modules below may be checkpointed as well.
///
/// The recomputation has the state of the forward, even if a program changes it
/// before backward, such as the step of a Dropout. For that, modules must read
/// such state through Captured (tensor/recompute.h), as those of nn/ do.
/// requires_grad of parameters must not change between a forward and its
/// backward.
///
/// Hooks of the module itself do not run again. So FullyShard on the same
/// module, before or after this call, gathers as often as without. Sharded
/// modules below gather as often, too, and stay gathered from the recomputation
/// to their backward. Collectives of tensor parallelism below are issued again.
///
/// The names of modules and parameters do not change. The module must outlive
/// the graphs recorded through it.
/// \error kFailedPrecondition if the module is checkpointed already, or its
///     saved activations are split; kInvalidArgument if `split_inputs_over`
///     does not have one axis that this rank is on.
absl::Status CheckpointActivations(
    Module& module, const ActivationCheckpointOptions& options = {});

/// Calls CheckpointActivations for `root` and each module below for which
/// `wants` returns true. It receives the module's name from `root`, such as
/// "layers.0". If it selects only modules between products, the products'
/// results are kept and the rest is recomputed.
/// \error kInvalidArgument if it selects none; kFailedPrecondition if a
///     selected module is checkpointed already. Then no module is changed.
absl::Status CheckpointActivationsIf(
    Module& root,
    absl::FunctionRef<bool(const Module& module, const std::string& name)>
        wants,
    const ActivationCheckpointOptions& options = {});

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_ACTIVATION_CHECKPOINT_H_
