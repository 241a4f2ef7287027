// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_OPTIM_GRADIENTS_H_
#define CROSSHATCH_NN_OPTIM_GRADIENTS_H_

/// \file
/// The gradients of parameters before a step: checks for optimizers, and a
/// rank's shards on any meshes for clipping and loss scaling.

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/parameter.h"
#include "crosshatch/tensor/rank_context.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch::nn {
/// Checks that no parameter is null or listed twice.
/// \param who for messages: "AdamW".
/// \returns shared ownership of the parameters that a std::shared_ptr owns,
///     such as those of modules. Others must outlive the caller.
std::vector<std::shared_ptr<Parameter>> ShareListed(
    const char* who, absl::Span<Parameter* const> parameters);

/// Returns OK if a step can use the gradients of `parameters`: some have a
/// gradient, none has one that is not reduced yet, and none has temporary
/// values (Ema::SwapIn). One rank of several may have no parameters, like a
/// pipeline stage without any. A rank that alone lacks gradients of unsharded
/// parameters only warns, once: an error on one rank would leave the others
/// waiting. With CROSSHATCH_DEBUG=replicas it also compares replicas of
/// parameters and gradients, and all ranks must call it.
///
/// \param what for messages: "AdamW::Step".
/// \error kFailedPrecondition naming parameters and what to do.
absl::Status CheckGradients(const char* what,
                            absl::Span<Parameter* const> parameters);

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
///     was not reduced over ranks (Parameter::gradient_is_pending).
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

/// Returns, on every rank of `over`, the norm of gradients that are on
/// different meshes on different ranks, such as pipeline stages. The norm of
/// each set of ranks whose parameters are on the same meshes counts once. All
/// ranks of `over` call it and wait for each other.
/// \param meshes the meshes of this rank's parameters; if empty, it has them
///     alone.
/// \param norm the norm over those meshes, the same on all of their ranks, or
///     an error.
/// \error the rank's own error in `norm`, otherwise that of the first rank with
///     one, naming the rank; kFailedPrecondition naming two ranks whose sets of
///     ranks overlap and differ, or whose norms over the same ranks differ;
///     errors of communication.
absl::StatusOr<double> JoinNorms(const DeviceMesh& over,
                                 absl::Span<const DeviceMesh> meshes,
                                 const absl::StatusOr<double>& norm,
                                 double norm_type);

/// While it exists, allocations go to the memory of `parameter`.
class MemoryOf {
 public:
  explicit MemoryOf(const Parameter& parameter) {
    if (parameter.on_host()) on_host_.emplace();
  }

 private:
  std::optional<HostMemoryScope> on_host_;
};

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_OPTIM_GRADIENTS_H_
