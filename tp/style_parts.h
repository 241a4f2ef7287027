// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TP_STYLE_PARTS_H_
#define CROSSHATCH_TP_STYLE_PARTS_H_

/// \file
/// Building blocks of styles, for those of this package and for your own
/// (ParallelStyle). Parameters are distributed once, when the plan is applied;
/// activations are redistributed by hooks (nn::Module::AddPreHook, AddPostHook)
/// in each forward.

#include <cstdint>

#include "absl/status/status.h"
#include "crosshatch/dtensor/layout/layout.h"
#include "crosshatch/dtensor/layout/placement.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/module.h"
#include "crosshatch/nn/parameter.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch::tp {

/// Returns the layout of a tensor of `ndim` dims on the one axis of `mesh`. A
/// sharded dim is split between units.
/// \checks that the dim of `placement` exists
Layout LayoutOn(const DeviceMesh& mesh, int ndim, Placement placement,
                int64_t unit = 1);

/// Gives `parameter` the layout `placement` on `mesh`, without communication:
/// its values are equal on all ranks, or it has no memory yet. A tied parameter
/// may be given the same layout several times.
/// \error kFailedPrecondition if it has another layout or FullyShard has
///     sharded it; kInvalidArgument if it lacks the dim.
absl::Status DistributeParameter(nn::Parameter& parameter,
                                 const DeviceMesh& mesh, Placement placement,
                                 int64_t unit = 1);

/// Distributes each parameter of the module itself, not of its children.
absl::Status DistributeOwnParameters(nn::Module& module, const DeviceMesh& mesh,
                                     Placement placement);

/// Replicates each plain buffer of the module itself on `mesh`, so that ops can
/// combine it with DTensors.
absl::Status ReplicateOwnBuffers(nn::Module& module, const DeviceMesh& mesh);

/// The layouts of an activation before and after a style's hook.
struct ActivationLayouts {
  Placement given = Replicate();  ///< Of a plain tensor.
  Placement desired = Replicate();
  /// Units of the last dim, the features, if it is sharded.
  int64_t given_unit = 1;
  int64_t desired_unit = 1;
};

/// Returns `tensor` redistributed to `layouts.desired` on `mesh`. A plain
/// tensor is taken to be the local shard of one in `layouts.given`. An
/// undefined tensor stays undefined.
///
/// The first plain floating-point tensor that is taken as Replicate on a mesh
/// is compared between the ranks.
/// \checks that a plain tensor that a style returned as a local shard
///     (LocalShard) and that no op has changed is taken in its own placement.
///     Without autograd's record (NoGrad) this is not known.
Tensor RedistributeActivation(const Tensor& tensor, const DeviceMesh& mesh,
                              const ActivationLayouts& layouts);

/// Returns the local shard of a DTensor as a plain tensor in the autograd
/// graph. Incoming gradients have the tensor's layout, except: if the tensor is
/// Partial(sum) they are Replicate; if it is Replicate and `sum_gradients` is
/// set they are Partial(sum).
Tensor LocalShard(const Tensor& tensor, bool sum_gradients = false);

/// Returns a view of the DTensor `output` whose gradient is reduced once,
/// before it goes on through the module that computed `output`: modules that
/// take a replicated tensor (ColwiseParallel) return Partial gradients for it.
/// A Partial `output` is returned as it is.
Tensor WithReducedGradient(const Tensor& output);

}  // namespace crosshatch::tp

#endif  // CROSSHATCH_TP_STYLE_PARTS_H_
