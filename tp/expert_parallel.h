// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TP_EXPERT_PARALLEL_H_
#define CROSSHATCH_TP_EXPERT_PARALLEL_H_

/// \file
/// The style that spreads the experts of an nn::MixtureOfExperts over an axis.

#include <optional>

#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/tp/parallel_style.h"

namespace crosshatch::tp {

struct ExpertParallelOptions {
  /// The ranks that work on tokens of their own: the batch, over which the
  /// load-balance loss and capacities are reckoned. Several axes are joined by
  /// DeviceMesh::Flatten, that of `shared` last. Unset: those of the experts.
  std::optional<DeviceMesh> batch = std::nullopt;
  /// The axis along which the module's input is the same on all ranks, as it is
  /// between modules that tensor parallelism splits: each then works on its
  /// share of the tokens. Unset: there is none, inputs are plain tensors.
  std::optional<DeviceMesh> shared = std::nullopt;
};

/// Splits an nn::MixtureOfExperts by whole experts over the axis that
/// ParallelizeModule is given: Shard(0) of each expert weight, of as many or
/// few experts as there are. Tokens travel to their experts and back by
/// all-to-all along that axis. The router stays as it is, or is replicated on
/// `shared`, where its gradient is summed.
///
/// The axis may be one of data parallelism (whose ranks have other tokens), the
/// one of tensor parallelism (`shared` then names it too) or one of its own;
/// docs/mixture_of_experts.md has a mesh for each.
Style ExpertParallel(ExpertParallelOptions options = {});

}  // namespace crosshatch::tp

#endif  // CROSSHATCH_TP_EXPERT_PARALLEL_H_
