// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_FSDP_FIRST_RANK_VALUES_H_
#define CROSSHATCH_FSDP_FIRST_RANK_VALUES_H_

/// \file
/// What the first rank of a mesh holds, on all its ranks: so that shards are
/// cut from one set of values.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch::fsdp {

/// Overwrites `local`, contiguous and of one size on all ranks of `mesh`, with
/// what the mesh's first rank has there. Issued to the current stream.
/// \error the rank's first error.
absl::Status TakeFromFirstRank(const DeviceMesh& mesh, const Tensor& local,
                               const std::string& label);

/// Whether the mesh's first rank has memory for each of `tensors`, of which all
/// ranks have as many. A dry run of another rank, which cannot ask, takes it to
/// have all: that is what FullyShardOptions::sync_from_first_rank is for. Waits
/// for the current stream.
/// \error as TakeFromFirstRank.
absl::StatusOr<std::vector<bool>> HasValuesOnFirstRank(
    const DeviceMesh& mesh, const std::vector<Tensor>& tensors,
    const std::string& label);

}  // namespace crosshatch::fsdp

#endif  // CROSSHATCH_FSDP_FIRST_RANK_VALUES_H_
