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

/// Returns the norm over all global gradients, on every rank. Each element of a
/// distributed gradient is counted by its one owner, and sums are reduced over
/// the gradient's mesh. Parameters may be on different meshes. Plain gradients
/// count once. Powers are added in float64, in an order that depends only on
/// layouts: on two meshes, the norm of n elements differs by at most n * 2^-52
/// of itself, and for infinity not at all.
///
/// If a mesh is a slice of another one, ranks outside of it have a replica of a
/// parameter, which counts once, or another parameter in its place (of another
/// expert), which counts too. This is decided for each parameter: gradients are
/// replicas if their parts of the norm (sums of powers) agree within 1e-9, more
/// than they differ by between two kinds of processors.
///
/// All ranks of the parameters' meshes, and of the roots of slices, call it.
/// Their lists must agree in which parameters are trained, in the mesh of each,
/// and on slices in number and order. A missing gradient counts as zeros. Waits
/// for the current stream once. In a dry run the norm is 0. \error the rank's
/// first error, if a collective failed, as where ranks have
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
/// torch.nn.utils.clip_grad_norm_ does, on the current stream. A max_norm of 0
/// sets them to zero, infinity leaves them unchanged. \returns the norm before
/// clipping. \error as GradNorm; kInvalidArgument for a max_norm that is
/// negative or NaN,
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
/// stays. Does not communicate. \error as ClipGradNorm; kInvalidArgument for a
/// negative value.
absl::Status ClipGradValue(absl::Span<Parameter* const> parameters,
                           double max_value);

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_OPTIM_CLIP_GRAD_H_
