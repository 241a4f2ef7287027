// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_CHECKPOINT_SAVE_PLAN_H_
#define CROSSHATCH_CHECKPOINT_SAVE_PLAN_H_

/// \file
/// SavePlan: which rank writes which part of a checkpoint. A function of data
/// that all ranks have, so that every rank computes the same plan. Needs no
/// ranks.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "crosshatch/checkpoint/index.h"
#include "crosshatch/checkpoint/safetensors.h"
#include "crosshatch/dtensor/layout/layout.h"
#include "crosshatch/tensor/dtype.h"
#include "crosshatch/tensor/shape.h"

namespace crosshatch::checkpoint {

/// A tensor of a state, described equally on all ranks.
struct TensorSpec {
  std::string name;
  DType dtype = DType::kFloat32;
  Shape sizes;
  /// Unset: replicated on all ranks of the world.
  std::optional<Layout> layout;
};

/// A cell of the index (index.h) that a rank writes.
struct PlannedCell {
  int tensor = 0;
  int cell = 0;

  friend bool operator==(const PlannedCell&, const PlannedCell&) = default;
};

/// The cells that each rank writes.
struct SavePlan {
  /// Without hashes and values. Each shard is one cell, however many ranks hold
  /// it.
  CheckpointIndex index;
  /// The cells of each rank, by its index in the world, in the order of its
  /// file: wide dtypes first, so that tensors are aligned to their elements.
  std::vector<std::vector<PlannedCell>> by_rank;

  /// Returns the index of the rank's file in index.files; -1 if it writes
  /// nothing.
  int FileOf(int rank) const;
  int64_t BytesOf(int rank) const;
  /// Returns the tensors in the rank's file.
  std::vector<TensorInfo> InfosOf(int rank) const;
  /// Returns one line with bytes and cells for each rank that writes.
  std::string ToString() const;
};

/// Assigns each shard to one of the ranks that hold it, so that replicas write
/// about the same number of bytes. Assigns shards of a single rank first, then
/// the others by decreasing size, each to the rank with the fewest bytes (the
/// first of equals).
/// \param tensors have different names, in any order.
/// \param world_ranks the ranks of the saving world by index; meshes use these
///     ranks.
/// \error kInvalidArgument naming a tensor that is Partial, is on ranks outside
///     of the world, or has the name of another.
absl::StatusOr<SavePlan> PlanSave(absl::Span<const TensorSpec> tensors,
                                  absl::Span<const int> world_ranks);
/// Plans for the world of ranks 0 to world_size - 1.
absl::StatusOr<SavePlan> PlanSave(absl::Span<const TensorSpec> tensors,
                                  int world_size);

/// The plan of those ranks of a world that have equal states.
struct PlanPart {
  /// As SavePlan::index.
  CheckpointIndex index;
  /// The rank that writes each file, by its index in the world.
  std::vector<int> writers;
};

/// Returns the plan of a world that saves all `parts`.
/// \error kInvalidArgument naming a tensor that two parts have, or a value that
///     differs between parts.
absl::StatusOr<SavePlan> JoinPlans(absl::Span<const PlanPart> parts,
                                   int world_size);

}  // namespace crosshatch::checkpoint

#endif  // CROSSHATCH_CHECKPOINT_SAVE_PLAN_H_
