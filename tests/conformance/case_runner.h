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

/// The most ranks that a mesh of `cases` has; 1 if none has any.
int RanksOf(const std::vector<std::string>& cases);

/// The answers to `cases`, one JSON object each, in their order, on every rank.
/// Called by all ranks of `world`; a smaller mesh is made of the first of them,
/// and a case whose mesh is larger is refused.
/// \error of a rank, or of what they do together.
absl::StatusOr<std::vector<std::string>> RunCases(
    World& world, const std::vector<std::string>& cases);

}  // namespace crosshatch::conformance

#endif  // CROSSHATCH_TESTS_CONFORMANCE_CASE_RUNNER_H_
