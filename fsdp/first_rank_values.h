// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_FSDP_FIRST_RANK_VALUES_H_
#define CROSSHATCH_FSDP_FIRST_RANK_VALUES_H_

/// \file
/// Broadcasts values from the first rank of a mesh, so that all shards are cut
/// from one set of values.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch::fsdp {

/// Overwrites `local` with the values of the mesh's first rank. Issued to the
/// current stream.
/// \param local contiguous, with the same size on all ranks of `mesh`.
/// \error The rank's first error.
absl::Status BroadcastFromFirstRank(const DeviceMesh& mesh, const Tensor& local,
                                    const std::string& label);

/// Returns for each of `tensors` whether the mesh's first rank has memory for
/// it. All ranks must pass the same number of tensors. Waits for the current
/// stream. A dry run of another rank assumes that the first rank has memory for
/// all: that is the use of FullyShardOptions::sync_from_first_rank.
/// \error The rank's first error.
absl::StatusOr<std::vector<bool>> HasValuesOnFirstRank(
    const DeviceMesh& mesh, const std::vector<Tensor>& tensors,
    const std::string& label);

}  // namespace crosshatch::fsdp

#endif  // CROSSHATCH_FSDP_FIRST_RANK_VALUES_H_
