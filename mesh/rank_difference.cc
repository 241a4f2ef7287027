// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/mesh/rank_difference.h"

#include <cstddef>
#include <vector>

#include "absl/types/span.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/communicator.h"
#include "crosshatch/mesh/device_mesh.h"

namespace crosshatch {

absl::StatusOr<std::optional<RankDifference>> FindRankDifference(
    const DeviceMesh& mesh, const std::string& here, const std::string& label) {
  if (mesh.size() == 1) return std::nullopt;
  CH_ASSIGN_OR_RETURN(Communicator * communicator, MeshCommunicator(mesh));
  CH_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                      communicator->Exchange(here, label));
  const absl::Span<const int> ranks = mesh.layout().ranks();
  for (size_t i = 1; i < all.size(); ++i) {
    if (all[i] != all[0]) {
      return RankDifference{all[0], ranks[0], all[i], ranks[i]};
    }
  }
  return std::nullopt;
}

}  // namespace crosshatch
