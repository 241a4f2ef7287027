// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_OPTIM_CLIP_GRAD_H_
#define CROSSHATCH_NN_OPTIM_CLIP_GRAD_H_

/// \file
/// Clipping of gradients by their global norm, or by value.

#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/parameter.h"

namespace crosshatch::nn {

struct ClipGradNormOptions {
  /// p: the norm is the p-th root of the sum of all |x|^p, or, of infinity, the
  /// largest |x|. Above 0.
  double norm_type = 2.0;
  /// A mesh of all ranks whose parameters are on different meshes, such as
  /// pipeline stages. If set, the norm is over the parameters of all of them
  /// and equal on every rank, and all ranks of the mesh call. See GradNorm.
  std::optional<DeviceMesh> over = std::nullopt;
  /// A norm that is NaN or infinite is an error that names a parameter with
  /// such a gradient; if unset, it is returned, and the gradients stay.
  bool error_if_nonfinite = true;
};

/// Returns the norm over all global gradients, on every rank. Each element of a
/// distributed gradient counts once, and sums are reduced over the gradient's
/// mesh. Parameters may be on different meshes. Plain gradients count once.
/// Powers are added in float64, in an order that depends only on layouts. On
/// two meshes, the relative difference of the norm of n elements is at most n *
/// 2^-52; for infinity it is 0.
///
/// If a mesh is a slice, ranks outside of it have either a replica of a
/// parameter, which counts once, or another parameter (of another expert),
/// which counts, too. This is decided for each parameter: gradients are
/// replicas if their sums of powers agree within 1e-9, more than two kinds of
/// processors differ by.
///
/// All ranks of the parameters' meshes, and of the roots of slices, call it.
/// Their lists must agree in which parameters are trained and on which mesh,
/// and for slices in number and order. A missing gradient counts as zeros.
/// Waits for the current stream once. In a dry run the norm is 0.
/// \param over a mesh of ranks with parameters on different meshes. Ranks with
///     the same meshes count once, and so does a rank with plain parameters.
///     Ranks that share meshes form a world (World::Subset), and other ranks
///     need not know its parameters. Parameters that stages share on a mesh of
///     all ranks cannot be combined with those of a stage.
/// \error the rank's first error, if a collective failed, for example for
///     different numbers of parameters on slices; kFailedPrecondition for a
///     gradient that is Partial or was not reduced over ranks yet;
///     kInvalidArgument for a norm type that is not above 0, and on all ranks
///     if only one of several replicas is finite. With `over`,
///     kFailedPrecondition on all ranks if sets of ranks overlap, or if ranks
///     of one set have different norms; an error of one rank is one of all.
absl::StatusOr<double> GradNorm(
    absl::Span<Parameter* const> parameters, double norm_type = 2.0,
    const std::optional<DeviceMesh>& over = std::nullopt);

/// Scales all gradients by max_norm / (norm + 1e-6) if that is below 1, as
/// torch.nn.utils.clip_grad_norm_ does, on the current stream. A max_norm of 0
/// sets them to zero, infinity leaves them unchanged.
/// \returns the norm before clipping.
/// \error as GradNorm; kInvalidArgument for a max_norm that is negative or NaN,
///     before anything is communicated, and for a norm that is not finite.
absl::StatusOr<float> ClipGradNorm(absl::Span<Parameter* const> parameters,
                                   double max_norm,
                                   const ClipGradNormOptions& options = {});

/// Scales the gradients by max_norm / (total_norm + 1e-6) if that is below 1,
/// for parameters that are clipped by the norm of more than themselves
/// (GradNorm of all, then this for each optimizer). Does not communicate.
/// \error the rank's first error; kFailedPrecondition for a gradient that holds
///     partial sums; kInvalidArgument for a max_norm that is negative or NaN,
///     and for a total_norm that is negative or not finite.
absl::Status ScaleGradsToNorm(absl::Span<Parameter* const> parameters,
                              double max_norm, double total_norm);

/// Clamps every element of every gradient to [-max_value, max_value]; NaN
/// stays. Does not communicate.
/// \error as ClipGradNorm; kInvalidArgument for a negative value.
absl::Status ClipGradValue(absl::Span<Parameter* const> parameters,
                           double max_value);

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_OPTIM_CLIP_GRAD_H_
