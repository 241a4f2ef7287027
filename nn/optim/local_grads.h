// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_OPTIM_LOCAL_GRADS_H_
#define CROSSHATCH_NN_OPTIM_LOCAL_GRADS_H_

/// \file
/// A rank's shards of gradients on any meshes, for clipping and loss scaling.

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/parameter.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch::nn {

/// Returns whether `next` starts `count` elements after `first`, in the same
/// storage and of the same dtype. Both are local and contiguous. Parameters,
/// gradients and optimizer state are often adjacent (FSDP keeps the shards of a
/// group so), and elementwise work then runs once over them.
inline bool FollowsAfter(const Tensor& first, int64_t count,
                         const Tensor& next) {
  return first.storage() == next.storage() && first.dtype() == next.dtype() &&
         first.storage_offset() + count == next.storage_offset();
}

/// A gradient's local shard.
struct LocalGrad {
  const Parameter* parameter;
  Tensor local;
  /// Index in the list of meshes; -1 for a plain gradient.
  int mesh;
  /// Index within the mesh's parameters; 0 for a plain gradient.
  int place;
  /// Whether this rank counts it: each element has exactly one owner.
  bool owned;
};

/// This rank's shards of the gradients of some parameters.
struct LocalGrads {
  std::vector<LocalGrad> grads;
  /// The meshes of the gradients and of trained parameters without a gradient,
  /// each once. Other ranks may have the latter's gradients, so that all ranks
  /// reduce over the same meshes.
  std::vector<DeviceMesh> meshes;
  /// The number of parameters of each mesh, including those without a gradient.
  std::vector<int> num_parameters;
};

/// \param purpose for the message: "clip".
/// \error kFailedPrecondition for a gradient that holds partial sums, or that
/// was
///     not reduced over ranks (Parameter::gradient_is_pending).
absl::StatusOr<LocalGrads> CollectLocalGrads(
    absl::Span<Parameter* const> parameters, const char* purpose);

/// Calls `visit(first, run)` with one tensor for each run of gradients that are
/// adjacent in memory and for which `together(first, next)` holds. Gradients
/// that are not contiguous are visited one by one.
template <typename Together, typename Visit>
void VisitRuns(const std::vector<LocalGrad>& grads, Together together,
               Visit visit) {
  size_t next = 0;
  while (next < grads.size()) {
    const LocalGrad& first = grads[next];
    int64_t count = 0;
    do {
      count += grads[next].local.numel();
      ++next;
    } while (next < grads.size() && first.local.is_contiguous() &&
             grads[next].local.is_contiguous() &&
             together(first, grads[next]) &&
             FollowsAfter(first.local, count, grads[next].local));
    if (count == 0) continue;
    if (first.local.is_contiguous()) {
      visit(first, MakeView(first.local.storage(), first.local.storage_offset(),
                            {count}, {1}, first.local.dtype()));
    } else {
      visit(first, first.local);
    }
  }
}

/// Does the same for functions that treat all elements alike.
template <typename Visit>
void VisitAllRuns(const std::vector<LocalGrad>& grads, Visit visit) {
  VisitRuns(
      grads, [](const LocalGrad&, const LocalGrad&) { return true; },
      [&](const LocalGrad&, const Tensor& run) { visit(run); });
}

/// Adds the squares of `local`, in float64, to sums[slot]; not in a dry run.
void AddSquares(const Tensor& local, const Tensor& sums, int slot);

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_OPTIM_LOCAL_GRADS_H_
