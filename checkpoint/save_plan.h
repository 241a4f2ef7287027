// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_CHECKPOINT_SAVE_PLAN_H_
#define CROSSHATCH_CHECKPOINT_SAVE_PLAN_H_

/// \file
/// Who writes what of a checkpoint: a function of what all ranks know, so that
/// every rank makes the same plan by itself. No rank is needed to make one.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "crosshatch/checkpoint/index.h"
#include "crosshatch/checkpoint/safetensors.h"
#include "crosshatch/dtensor/layout.h"
#include "crosshatch/tensor/dtype.h"
#include "crosshatch/tensor/shape.h"

namespace crosshatch::checkpoint {

/// A tensor of a state as all ranks see it.
struct TensorSpec {
  std::string name;
  DType dtype = DType::kFloat32;
  Shape sizes;
  /// None: the same on every rank of the world.
  std::optional<Layout> layout;
};

/// A cell of the index (index.h) that a rank writes.
struct PlannedCell {
  int tensor = 0;
  int cell = 0;

  friend bool operator==(const PlannedCell&, const PlannedCell&) = default;
};

struct SavePlan {
  /// Without hashes and values. Its cells are the shards, each once, however
  /// many ranks hold it.
  CheckpointIndex index;
  /// What each rank writes, by its index in the world, in the order of its
  /// file: wide dtypes first, so that each tensor is aligned to its elements.
  std::vector<std::vector<PlannedCell>> by_rank;

  /// In index.files; -1 for a rank that writes nothing.
  int FileOf(int rank) const;
  int64_t BytesOf(int rank) const;
  /// What that file holds.
  std::vector<TensorInfo> InfosOf(int rank) const;
  /// For each rank that writes a line of its bytes and cells.
  std::string ToString() const;
};

/// Gives each shard to one of the ranks that hold it, so that ranks that hold
/// the same write about equally many bytes: those that one rank alone holds
/// first, then the largest first, each to the rank that has the least to write
/// (of equals the first).
/// \param tensors with different names, in any order
/// \param world_ranks of the world that saves, by index; meshes name ranks so.
/// \error kInvalidArgument naming the tensor: partial ones, whose sums are
///     still due; ranks of a mesh beyond the world; a name twice.
absl::StatusOr<SavePlan> PlanSave(absl::Span<const TensorSpec> tensors,
                                  absl::Span<const int> world_ranks);
/// Of the world of ranks 0 to world_size - 1.
absl::StatusOr<SavePlan> PlanSave(absl::Span<const TensorSpec> tensors,
                                  int world_size);

/// The plan of ranks that have equal states, some of a world's.
struct PlanPart {
  /// As SavePlan::index.
  CheckpointIndex index;
  /// Which rank of the world, by index, writes each file.
  std::vector<int> writers;
};

/// Returns the plan of a world for what `parts` hold together.
/// \error kInvalidArgument naming a tensor that two parts have, or a value that
///     they have differently.
absl::StatusOr<SavePlan> JoinPlans(absl::Span<const PlanPart> parts,
                                   int world_size);

}  // namespace crosshatch::checkpoint

#endif  // CROSSHATCH_CHECKPOINT_SAVE_PLAN_H_
