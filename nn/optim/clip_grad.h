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
  /// Set where ranks have parameters on different meshes, such as those of
  /// pipeline stages: a mesh of all these ranks. The norm is then over the
  /// parameters of all of them, the same on every rank, and all ranks of the
  /// mesh call. See GradNorm.
  std::optional<DeviceMesh> over = std::nullopt;
  /// A norm that is NaN or infinite is an error that names a parameter with
  /// such a gradient; if unset, it is returned, and the gradients stay.
  bool error_if_nonfinite = true;
};

/// The norm over all gradients: of the whole ones, on every rank. Of a
/// distributed gradient each element is counted by its one owner, and the sums
/// are reduced over the gradient's mesh. Parameters may be on different meshes.
/// Plain gradients count once. Powers are added in float64, in an order that
/// depends on layouts alone: between two meshes of n elements the norm differs
/// by no more than n * 2^-52 of itself, and for infinity not at all.
///
/// Of a mesh that is a slice of another, ranks beyond it hold a copy of a
/// parameter, which counts once, or another in its place (of another expert),
/// which counts too. That is decided for each parameter: gradients are of
/// copies if their parts of the norm (sums of powers) are equal but for 1e-9 of
/// them, which is more than they differ by where processors are of two kinds.
/// Two that are not copies count once if theirs happen to be.
///
/// Called by all ranks of the parameters' meshes, and of the roots of slices,
/// with lists that agree in which parameters are trained and which mesh each is
/// on, and on slices in their number and order. A gradient that a rank lacks is
/// one of zeros in what the rank holds of it. Waits for the current stream
/// once. On a dry run the norm is 0.
/// \error the rank's first error, if a collective failed, as where ranks have
///     other numbers of parameters on slices; kFailedPrecondition for a
///     gradient that holds partial sums or was not reduced over ranks yet;
///     kInvalidArgument for a norm type that is not above 0. Also
///     kInvalidArgument, on all ranks, if a replica of a gradient is not finite
///     and the one that counts is: replicas differ then.
/// \param over set, a mesh of ranks with parameters on different meshes: what
///     ranks have on the same meshes counts once, a rank whose parameters are
///     plain counts by itself. A set of ranks that share meshes is a world of
///     its own (World::Subset), whose parameters the other ranks need not know.
///     kFailedPrecondition on all ranks if two such sets meet and differ, or if
///     ranks of one set have other norms: parameters that stages share on a
///     mesh of all ranks do not combine with those of a stage. An error of one
///     rank is one of all ranks.
absl::StatusOr<double> GradNorm(
    absl::Span<Parameter* const> parameters, double norm_type = 2.0,
    const std::optional<DeviceMesh>& over = std::nullopt);

/// Scales all gradients by max_norm / (norm + 1e-6) if that is below 1, as
/// torch.nn.utils.clip_grad_norm_ does. A max_norm of 0 gives zeros, one of
/// infinity only measures. The scaling is issued to the current stream.
/// \returns the norm before.
/// \error as GradNorm; kInvalidArgument for a max_norm that is negative or NaN,
///     before anything is communicated, and for a norm that is not finite.
absl::StatusOr<float> ClipGradNorm(absl::Span<Parameter* const> parameters,
                                   double max_norm,
                                   const ClipGradNormOptions& options = {});

/// Scales the gradients by max_norm / (total_norm + 1e-6) if that is below 1,
/// whatever their own norm is: for parameters that are clipped by the norm of
/// more than themselves (GradNorm of all, then this for each optimizer's).
/// Communicates nothing.
/// \error the rank's first error; kFailedPrecondition for a gradient that holds
///     partial sums; kInvalidArgument for a max_norm that is negative or NaN,
///     and for a total_norm that is negative or not finite.
absl::Status ScaleGradsToNorm(absl::Span<Parameter* const> parameters,
                              double max_norm, double total_norm);

/// Cuts every element of every gradient to [-max_value, max_value]; NaN stays.
/// Communicates nothing: each rank cuts what it holds.
/// \error as ClipGradNorm; kInvalidArgument for a negative value.
absl::Status ClipGradValue(absl::Span<Parameter* const> parameters,
                           double max_value);

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_OPTIM_CLIP_GRAD_H_
