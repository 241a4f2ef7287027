// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TP_STYLE_PARTS_H_
#define CROSSHATCH_TP_STYLE_PARTS_H_

/// \file
/// What styles are made of, those of this package and a program's own
/// (ParallelStyle): parameters are spread once, when the plan is laid;
/// activations are brought into layouts by hooks (nn::Module::AddPreHook,
/// AddPostHook), at each forward.

#include <cstdint>

#include "absl/status/status.h"
#include "crosshatch/dtensor/layout/layout.h"
#include "crosshatch/dtensor/layout/placement.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/module.h"
#include "crosshatch/nn/parameter.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch::tp {

/// The layout of a tensor of `ndim` dims on the one axis of `mesh`, in units
/// along the dim that it splits. Checks that there is such a dim.
Layout LayoutOn(const DeviceMesh& mesh, int ndim, Placement placement,
                int64_t unit = 1);

/// Gives `parameter` the layout `placement` on `mesh`. A tied parameter may be
/// given one layout several times. Values are not communicated: they are equal
/// on all ranks, or not there yet.
/// \error kFailedPrecondition for a parameter that has another layout, or is
///     sharded by FullyShard.
absl::Status SpreadParameter(nn::Parameter& parameter, const DeviceMesh& mesh,
                             Placement placement, int64_t unit = 1);

/// SpreadParameter for each parameter of the module itself.
absl::Status SpreadOwnParameters(nn::Module& module, const DeviceMesh& mesh,
                                 Placement placement);

/// Gives each plain buffer of the module itself the layout Replicate on `mesh`,
/// which forwards need whose parameters and inputs lie there.
absl::Status ReplicateOwnBuffers(nn::Module& module, const DeviceMesh& mesh);

/// How an activation comes and how it goes on.
struct Crossing {
  /// How a plain tensor lies.
  Placement given = Replicate();
  Placement desired = Replicate();
  /// Of the last dim, that of features, where it is split.
  int64_t given_unit = 1;
  int64_t desired_unit = 1;
};

/// `tensor` on `mesh` as `crossing.desired`: a DTensor. An undefined tensor
/// stays so.
Tensor Bring(const Tensor& tensor, const DeviceMesh& mesh,
             const Crossing& crossing);

/// This rank's part of a DTensor, as a plain tensor in the graph. Gradients
/// that come back are parts of one that lies as the tensor, but for a pending
/// sum or with `sum_gradients`: of the former they are replicated, of a
/// replicated tensor with the latter they are summands.
Tensor LocalPart(const Tensor& tensor, bool sum_gradients = false);

/// Bring for `style` of `module`, which checks first that a plain tensor comes
/// as `crossing.given`, as far as is known (handed_out.h): one that a style has
/// handed out as lying otherwise fails a check, which names both modules.
Tensor TakeIn(const Tensor& tensor, const DeviceMesh& mesh,
              const Crossing& crossing, const nn::Module& module,
              const char* style);

/// LocalPart of a DTensor that lies on `mesh` as `placement`, for `style` of
/// `module`: what takes the part is checked to take it so (TakeIn).
Tensor HandOut(const Tensor& tensor, const DeviceMesh& mesh,
               const Placement& placement, const nn::Module& module,
               const char* style, bool sum_gradients = false);

/// `output`, a DTensor that a module hands out, where its gradient comes back
/// whole: what takes a replicated tensor as it is (ColwiseParallel) gives it a
/// gradient of pending sums, which are reduced once, here, before anything that
/// needs the gradient itself asks for it implicitly. One of pending sums stays
/// as it is.
Tensor WithWholeGradient(const Tensor& output);

}  // namespace crosshatch::tp

#endif  // CROSSHATCH_TP_STYLE_PARTS_H_
