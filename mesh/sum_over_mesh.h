// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_MESH_SUM_OVER_MESH_H_
#define CROSSHATCH_MESH_SUM_OVER_MESH_H_

/// \file
/// SumOverMesh: sums of metrics over the ranks of a mesh, in double precision.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

/// Returns, on every rank of `mesh`, the sums over its ranks of `values[i]`:
///
///     CH_ASSIGN_OR_RETURN(const std::vector<double> sums,
///                         SumOverMesh(data, {loss_sum, correct, rows}));
///
/// Called by all ranks of the mesh, each with its own values, in equal number.
/// Adds in float64, in the order of AllReduce. Every rank gets the same bits.
/// Waits for the current stream. On a dry run the sums are 0.
/// \param label names the sum in errors.
/// \error the rank's first error, such as ranks that give other numbers of
///     values; as DeviceMesh::communicator.
absl::StatusOr<std::vector<double>> SumOverMesh(
    const DeviceMesh& mesh, absl::Span<const double> values,
    const std::string& label = "sum over the mesh");

/// As above for the elements of `values`, a plain tensor of any dtype and
/// sizes, in row-major order; it stays as it is. It is not read before the
/// sums: one wait, not two.
absl::StatusOr<std::vector<double>> SumOverMesh(
    const DeviceMesh& mesh, const Tensor& values,
    const std::string& label = "sum over the mesh");

}  // namespace crosshatch

#endif  // CROSSHATCH_MESH_SUM_OVER_MESH_H_
