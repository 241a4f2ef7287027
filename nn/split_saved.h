// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_SPLIT_SAVED_H_
#define CROSSHATCH_NN_SPLIT_SAVED_H_

/// \file
/// Sharding of saved activations that are replicated along an axis: each rank
/// keeps a shard, and backward gathers them.

#include <memory>

#include "absl/status/status.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/module.h"
#include "crosshatch/tensor/node.h"

namespace crosshatch::nn {

/// The key of the attachment (Module::Attach) of modules whose saved
/// activations are split, and of those that are checkpointed
/// (activation_checkpoint.h).
inline constexpr char kSplitSavedKey[] = "split_saved";
inline constexpr char kCheckpointKey[] = "checkpoint";

/// Returns a store for saved tensors (tensor/node.h). For DTensors that are
/// replicated on `mesh`, of one axis, it keeps one copy of this rank's shard
/// along the longest dim, however many nodes save the tensor, and gathers it on
/// each Get by an all-gather on the current stream. It keeps other tensors as
/// they are, and checks for writes in place.
///
/// It serves one forward, whose graph has no other store.
/// \threadsafety the rank's thread only.
std::shared_ptr<SavedTensorStore> MakeSplitSavedStore(const DeviceMesh& mesh);

/// Keeps shards of the activations that the forward of `module`, and of all
/// below, saves for backward from now on, except for leaves. Of n bytes of
/// replicated activations a rank keeps n / ranks, if sizes divide. Backward
/// gathers each tensor once for each node that saved it, so this is worth its
/// time if a module saves few large ones (the input of split projections,
/// without SequenceParallel). It has no effect within checkpointed modules,
/// which save none.
///
/// To shard the inputs of a checkpointed module, see
/// ActivationCheckpointOptions::split_inputs_over.
/// \param mesh one axis that this rank is on.
/// \error kInvalidArgument for another mesh; kFailedPrecondition for a module
///     that has it already, or is checkpointed.
absl::Status SplitSavedActivations(Module& module, const DeviceMesh& mesh);

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_SPLIT_SAVED_H_
