// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_CLIP_GRAD_H_
#define CROSSHATCH_NN_CLIP_GRAD_H_

/// \file
/// Clipping of gradients by their global norm.

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "crosshatch/nn/parameter.h"

namespace crosshatch::nn {

struct ClipGradNormOptions {
  /// A norm that is NaN or infinite is an error that names a parameter with
  /// such a gradient; if unset, it is returned, and the gradients stay.
  bool error_if_nonfinite = true;
};

/// Scales all gradients by max_norm / norm if `norm`, the L2 norm over all of
/// them, is larger than `max_norm`; torch.nn.utils.clip_grad_norm_ gives the
/// same. A max_norm of infinity only measures.
///
/// The norm is that of the whole gradients, on every rank: of a distributed
/// gradient each element is counted by its one owner, and the sums are reduced
/// over the gradient's mesh. Parameters may be on different meshes. Plain
/// gradients count once. Squares are added in float64, in an order that depends
/// on layouts alone.
///
/// Called by all ranks that hold a part. Waits for the current stream once, for
/// the norm; the scaling is issued to it. On a dry run the norm is 0.
/// \error the rank's first error, if a collective failed; kFailedPrecondition
///     for a gradient that holds partial sums; kInvalidArgument for a norm that
///     is not finite.
absl::StatusOr<float> ClipGradNorm(absl::Span<Parameter* const> parameters,
                                   double max_norm,
                                   const ClipGradNormOptions& options = {});

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_CLIP_GRAD_H_
