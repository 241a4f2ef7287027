// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TP_EXPERT_PARALLEL_H_
#define CROSSHATCH_TP_EXPERT_PARALLEL_H_

/// \file
/// The style that distributes the experts of an nn::MixtureOfExperts over an
/// axis.

#include <optional>

#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/tp/parallel_style.h"

namespace crosshatch::tp {

struct ExpertParallelOptions {
  /// The ranks with their own tokens: the batch, over which the load-balancing
  /// loss and capacities are computed. Join several axes by
  /// DeviceMesh::Flatten, that of `shared` last. Unset: the ranks of the
  /// experts.
  std::optional<DeviceMesh> batch = std::nullopt;
  /// The axis along which the module's input is the same on all ranks, as with
  /// tensor parallelism: each rank works on its part of the tokens. Unset:
  /// inputs are plain tensors that differ between ranks.
  std::optional<DeviceMesh> shared = std::nullopt;
};

/// Splits an nn::MixtureOfExperts by whole experts over the axis that
/// ParallelizeModule is given: Shard(0) of each expert weight, for any number
/// of experts. Tokens are exchanged with their experts by all-to-all along that
/// axis. The router stays plain, or is replicated on `shared`, where its
/// gradient is summed.
///
/// The axis may be one of data parallelism, the one of tensor parallelism (also
/// named by `shared`), or one of its own; docs/mixture_of_experts.md has a mesh
/// for each.
Style ExpertParallel(ExpertParallelOptions options = {});

}  // namespace crosshatch::tp

#endif  // CROSSHATCH_TP_EXPERT_PARALLEL_H_
