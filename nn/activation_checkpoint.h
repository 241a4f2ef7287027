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
  /// A mesh of one axis: of inputs that are DTensors replicated over it each
  /// rank keeps its part alone, and they are gathered when backward asks, once
  /// for each input (split_saved.h). What the inputs take of memory is divided
  /// by the ranks; parallel styles that keep activations split between blocks
  /// (SequenceParallel) leave nothing to divide.
  std::optional<DeviceMesh> split_inputs_over = std::nullopt;
};

/// Makes `module` keep its inputs for backward instead of its activations;
/// backward runs its forward again (tensor/recompute.h). Gradients have the
/// same bits. Modules below may be checkpointed as well.
///
/// State that forward depends on and that changes before backward (the step of
/// a Dropout) is that of forward where the module reads it through Captured
/// (tensor/recompute.h), as all modules of nn/ do. Whether parameters require a
/// gradient does not change between a forward and its backward.
///
/// What stands on the module's own hooks runs once: FullyShard on the same
/// module, before or after this call, gathers as often as without, and so do
/// sharded modules below, whose parameters stay gathered from the second run
/// to their backward. The collectives of tensor parallelism below are issued
/// again.
///
/// The names of modules and parameters do not change. The module outlives the
/// graphs recorded through it.
/// \error kFailedPrecondition for a module that is checkpointed already, or
///     whose saved activations are split; kInvalidArgument for a mesh to split
///     over that is not of one axis that this rank is on.
absl::Status CheckpointActivations(
    Module& module, const ActivationCheckpointOptions& options = {});

/// Calls CheckpointActivations for each module of `root`, itself included, for
/// which `wants` returns true, given the module's name from `root`: "layers.0".
/// A predicate that selects only the modules between products keeps the
/// products' results and recomputes the rest.
/// \error kInvalidArgument if it wants none; kFailedPrecondition for a module
///     that is checkpointed already. Then none is.
absl::Status CheckpointActivationsIf(
    Module& root,
    absl::FunctionRef<bool(const Module& module, const std::string& name)>
        wants,
    const ActivationCheckpointOptions& options = {});

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_ACTIVATION_CHECKPOINT_H_
