// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TESTS_CONFORMANCE_CASE_RUNNER_H_
#define CROSSHATCH_TESTS_CONFORMANCE_CASE_RUNNER_H_

/// \file
/// Runs cases of layouts, redistributions and FSDP over tensor-parallel shards
/// on real ranks: distributed tensors made, moved and read as a program does.
///
/// A case is a JSON object with `id`, `kind`, `mesh` (sizes of the axes) and
/// `shape`; the tensor is float32 arange(prod(shape)). By kind:
///   layout       `src` placements -> each rank's `shape`, `values`, `offset`
///   redistribute `src`, `dst` -> each rank's `shape` and `values` after. Where
///                `src` has P, a rank holds its plain shard times 1 + k, k
///                being its row-major index over the mesh's P axes.
///   fsdp_tp      `tp`, the placement on the last axis; FSDP shards it on the
///                first -> `placements` over the whole mesh, `shape`, `values`
/// The answer is {"id": …, "ranks": […]}, or {"id": …, "error": "…"} where the
/// case is refused.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "crosshatch/comm/world.h"

namespace crosshatch::conformance {

/// Returns the largest number of ranks of a mesh in `cases`, at least 1.
int RanksOf(const std::vector<std::string>& cases);

/// Returns the answers to `cases` in order, one JSON object each, on every
/// rank. All ranks of `world` call it. A mesh consists of the first ranks; a
/// case with a larger mesh is refused.
/// \error any error of a rank or of a collective.
absl::StatusOr<std::vector<std::string>> RunCases(
    World& world, const std::vector<std::string>& cases);

}  // namespace crosshatch::conformance

#endif  // CROSSHATCH_TESTS_CONFORMANCE_CASE_RUNNER_H_
