// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_MESH_MESH_COLLECTIVES_H_
#define CROSSHATCH_MESH_MESH_COLLECTIVES_H_

/// \file
/// Sums and comparisons of values of the host between the ranks of a mesh.

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

/// Returns, on every rank of `mesh`, the sum of `values[i]` over its ranks:
///
///     CH_ASSIGN_OR_RETURN(const std::vector<double> sums,
///                         SumOverMesh(data, {loss_sum, correct, rows}));
///
/// All ranks of the mesh must call it with the same number of values. Adds in
/// float64 in the order of AllReduce; every rank gets the same bits. Waits for
/// the current stream. In a dry run the sums are 0.
/// \param label names the sum in errors.
/// \error The rank's first error, e.g. if ranks pass different numbers of
///     values; as DeviceMesh::communicator.
absl::StatusOr<std::vector<double>> SumOverMesh(
    const DeviceMesh& mesh, absl::Span<const double> values,
    const std::string& label = "sum over the mesh");

/// Sums the elements of `values` in row-major order. The tensor is not read on
/// the host before the collective, so the host waits once, not twice.
/// \param values a plain tensor of any dtype and shape; it is not changed.
absl::StatusOr<std::vector<double>> SumOverMesh(
    const DeviceMesh& mesh, const Tensor& values,
    const std::string& label = "sum over the mesh");

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

#endif  // CROSSHATCH_MESH_MESH_COLLECTIVES_H_
