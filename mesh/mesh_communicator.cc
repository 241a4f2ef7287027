// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/mesh/mesh_communicator.h"

#include <cstddef>
#include <numeric>
#include <vector>

#include "crosshatch/tensor/rank_context.h"

namespace crosshatch {

absl::StatusOr<Communicator*> MeshCommunicator(const DeviceMesh& mesh) {
  std::vector<int> axes(static_cast<size_t>(mesh.ndim()));
  std::iota(axes.begin(), axes.end(), 0);
  return mesh.communicator(axes,
                           RankContext::Current().current_stream().name());
}

}  // namespace crosshatch
