// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_LAYOUT_PLACEMENT_H_
#define CROSSHATCH_DTENSOR_LAYOUT_PLACEMENT_H_

/// \file
/// Placements: what one mesh axis does to a tensor, in PyTorch's vocabulary.
///
/// Users write a layout as one placement per mesh axis: `{Shard(0),
/// Replicate()}`. Layout (layout.h) is the internal form: for each tensor dim,
/// the axes that split it, in order.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "crosshatch/base/reduce_op.h"

namespace crosshatch {

/// A value: one of Replicate, Shard, StridedShard and Partial. The functions of
/// those names below create it.
class Placement {
 public:
  enum class Kind : uint8_t { kReplicate, kShard, kStridedShard, kPartial };

  /// Creates Replicate.
  constexpr Placement() = default;

  constexpr Kind kind() const { return kind_; }
  constexpr bool is_replicate() const { return kind_ == Kind::kReplicate; }
  /// Returns whether it is a shard of either kind.
  constexpr bool is_shard() const {
    return kind_ == Kind::kShard || kind_ == Kind::kStridedShard;
  }
  constexpr bool is_partial() const { return kind_ == Kind::kPartial; }

  /// Returns the tensor dim that is split. If negative, it counts from the end.
  /// \pre is_shard()
  constexpr int dim() const { return dim_; }
  /// Returns the split factor, 1 for a plain shard.
  /// \pre is_shard()
  constexpr int64_t split_factor() const { return split_factor_; }
  /// \pre is_partial()
  constexpr ReduceOp reduce_op() const { return reduce_op_; }

  /// Returns "R", "S(0)", "_S(0,2)" or "P(sum)".
  std::string ToString() const;
  /// The inverse of ToString; "P" alone is "P(sum)".
  /// \error kInvalidArgument for any other text.
  static absl::StatusOr<Placement> Parse(absl::string_view text);

  friend constexpr bool operator==(const Placement& a, const Placement& b) {
    return a.kind_ == b.kind_ && a.dim_ == b.dim_ &&
           a.split_factor_ == b.split_factor_ && a.reduce_op_ == b.reduce_op_;
  }
  friend constexpr bool operator!=(const Placement& a, const Placement& b) {
    return !(a == b);
  }
  template <typename H>
  friend H AbslHashValue(H h, const Placement& p) {
    return H::combine(std::move(h), p.kind_, p.dim_, p.split_factor_,
                      p.reduce_op_);
  }

 private:
  friend constexpr Placement Shard(int dim);
  friend constexpr Placement StridedShard(int dim, int64_t split_factor);
  friend constexpr Placement Partial(ReduceOp op);

  constexpr Placement(Kind kind, int dim, int64_t split_factor, ReduceOp op)
      : kind_(kind), reduce_op_(op), dim_(dim), split_factor_(split_factor) {}

  Kind kind_ = Kind::kReplicate;
  ReduceOp reduce_op_ = ReduceOp::kSum;
  int dim_ = 0;
  int64_t split_factor_ = 1;
};

/// Every rank along the axis holds the same values.
constexpr Placement Replicate() { return Placement(); }

/// Dim `dim` is split along the axis into chunks of ceil(n / ranks); the last
/// ones may be short or empty. If several axes split one dim, the earlier mesh
/// axis splits first.
constexpr Placement Shard(int dim) {
  return Placement(Placement::Kind::kShard, dim, 1, ReduceOp::kSum);
}

/// As Shard, for a dim that later mesh axes have already split into
/// `split_factor` pieces. FSDP over tensor parallelism on one dim is
/// {StridedShard(0, tp), Shard(0)}.
constexpr Placement StridedShard(int dim, int64_t split_factor) {
  return Placement(Placement::Kind::kStridedShard, dim, split_factor,
                   ReduceOp::kSum);
}

/// The tensor is the reduction of the ranks' tensors along the axis.
constexpr Placement Partial(ReduceOp op = ReduceOp::kSum) {
  return Placement(Placement::Kind::kPartial, 0, 1, op);
}

/// Returns "[S(0),R]".
std::string ToString(absl::Span<const Placement> placements);

/// The inverse of ToString; blanks after commas are allowed.
absl::StatusOr<std::vector<Placement>> ParsePlacements(absl::string_view text);

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_LAYOUT_PLACEMENT_H_
