// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_SPLIT_SAVED_H_
#define CROSSHATCH_NN_SPLIT_SAVED_H_

/// \file
/// Activations that every rank of an axis has alike, kept for backward in
/// parts: each rank keeps its own and they are gathered when backward asks.

#include <memory>

#include "absl/status/status.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/module.h"
#include "crosshatch/tensor/node.h"

namespace crosshatch::nn {

/// The key of the attachment (Module::Attach) of modules whose saved
/// activations are split, and of those that are checkpointed (checkpoint.h).
inline constexpr char kSplitSavedKey[] = "split_saved";
inline constexpr char kCheckpointKey[] = "checkpoint";

/// Takes what autograd saves (tensor/node.h). Of DTensors whose local parts are
/// the same on all ranks of `mesh`, of one axis, it keeps this rank's share of
/// the longest dim, a copy and one however many nodes save it, and gathers it
/// each time it is asked: an all-gather on the current stream. All else it
/// keeps as it comes, and checks for writes in place.
///
/// It serves one forward, of a graph that no other store is kept for.
/// \threadsafety the rank's thread only.
std::shared_ptr<SavedTensorStore> MakeSplitSavedStore(const DeviceMesh& mesh);

/// From now on what the forward of `module`, and of all below, saves for
/// backward is kept so, but for leaves, which live anyway. With n bytes of
/// replicated activations saved a rank keeps n / ranks, where sizes divide.
/// Backward gathers each tensor once for each node that saved it, so it is
/// worth its time where a module saves few large ones (the input of split
/// projections, without SequenceParallel). Within a part that is recomputed it
/// does nothing: that keeps no activations.
///
/// To keep the inputs of a recomputed module in parts, see
/// CheckpointOptions::split_inputs_over.
/// \param mesh one axis that this rank is on.
/// \error kInvalidArgument for another mesh; kFailedPrecondition for a module
///     that has it already, or is checkpointed.
absl::Status SplitSavedActivations(Module& module, const DeviceMesh& mesh);

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_SPLIT_SAVED_H_
