// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_MESH_RANK_DIFFERENCE_H_
#define CROSSHATCH_MESH_RANK_DIFFERENCE_H_

/// \file
/// FindRankDifference: compares a text between the ranks of a mesh.

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "crosshatch/mesh/device_mesh.h"

namespace crosshatch {

/// Two ranks whose texts differ.
struct RankDifference {
  std::string first;  ///< The text of world rank `first_rank`.
  int first_rank;
  std::string other;  ///< The text of world rank `other_rank`.
  int other_rank;
};

/// Compares `here` between all ranks of `mesh`. All of them must call it, and
/// wait for each other; on a mesh of one rank nothing is exchanged.
/// \param label names the exchange in messages.
/// \returns nullopt if all texts are equal; otherwise the first rank and a rank
///     with another text, the same pair on all ranks.
absl::StatusOr<std::optional<RankDifference>> FindRankDifference(
    const DeviceMesh& mesh, const std::string& here, const std::string& label);

}  // namespace crosshatch

#endif  // CROSSHATCH_MESH_RANK_DIFFERENCE_H_
