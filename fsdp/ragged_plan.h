// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_FSDP_RAGGED_PLAN_H_
#define CROSSHATCH_FSDP_RAGGED_PLAN_H_

/// \file
/// The cuts of a ragged group: its flat buffer is divided into one piece per
/// rank, so that a gather or a reduction of the group is one collective of
/// contiguous pieces. A value; nothing here communicates.

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace crosshatch::fsdp {

/// Alignment of full parameters in elements: 64 bytes of float32, a cache line.
inline constexpr int64_t kFullAlignment = 16;

/// Returns the least multiple of `multiple` that is at least `n`, which is not
/// negative.
constexpr int64_t RoundUp(int64_t n, int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

/// Equal slots are used if they exceed the average piece by at most this part
/// of it.
inline constexpr double kMaxSlotSlack = 1.0 / 32;

/// A parameter as PlanRaggedShards needs it: a matrix, whose rows are the
/// indices of dim 0. Blocks of rows are not divided.
struct RaggedParameter {
  int64_t rows = 0;
  int64_t row_elems = 1;
  int64_t rows_per_block = 1;

  int64_t elems() const { return rows * row_elems; }
};

struct RaggedPlan {
  /// The size in elements of every rank's piece. 0: pieces differ.
  int64_t slot_elems = 0;
  /// The first element of each parameter in the flat buffer, a multiple of
  /// kFullAlignment.
  std::vector<int64_t> offsets;
  /// For each parameter, the rows at which the pieces of ranks 1, 2, ... begin
  /// (DimSharding::cuts).
  std::vector<std::vector<int64_t>> cuts;
};

/// Returns offsets and cuts for parameters that are laid out in this order.
///
/// Pieces are equal slots if parameters can be placed such that each boundary
/// between slots is between blocks, with gaps of at most kMaxSlotSlack.
/// Otherwise there are no gaps except for alignment, and each boundary is the
/// end of a block that is nearest to an even division.
RaggedPlan PlanRaggedShards(absl::Span<const RaggedParameter> parameters,
                            int ranks);

}  // namespace crosshatch::fsdp

#endif  // CROSSHATCH_FSDP_RAGGED_PLAN_H_
