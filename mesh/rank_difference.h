// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_MESH_RANK_DIFFERENCE_H_
#define CROSSHATCH_MESH_RANK_DIFFERENCE_H_

/// \file
/// Finds out whether ranks that should say the same do.

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "crosshatch/mesh/device_mesh.h"

namespace crosshatch {

/// What the first rank of a mesh says, and one that says something else.
struct RankDifference {
  std::string first;  ///< What world rank `first_rank` says.
  int first_rank;
  std::string other;  ///< What world rank `other_rank` says.
  int other_rank;
};

/// All ranks of `mesh` call it, each with what it says, and wait for each
/// other; one alone waits for nobody. \returns nullopt where all say `here`,
/// else the same on all of them. \param label of the exchange, for messages
absl::StatusOr<std::optional<RankDifference>> FindRankDifference(
    const DeviceMesh& mesh, const std::string& here, const std::string& label);

}  // namespace crosshatch

#endif  // CROSSHATCH_MESH_RANK_DIFFERENCE_H_
