// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_FSDP_GROUP_PLAN_H_
#define CROSSHATCH_FSDP_GROUP_PLAN_H_

/// \file
/// GroupPlan: the memory layout of a group's buffers, and the segments that
/// move between them. A value; nothing here communicates.
///
/// A group has two kinds of buffers. The *full* buffer holds whole parameters,
/// each contiguous and starting at a multiple of kFullAlignment elements. The
/// *shard* buffer of a rank holds its shards of all parameters, one after the
/// other. A gather writes a peer's shards straight to their places in the full
/// buffer, and a reduction reads gradients from there.
///
/// In the full buffer, a shard on dim 0 is one run of elements. On another dim
/// it is one run for each index of the dims before it. Shard buffers have no
/// gaps.
///
/// In a ragged group (ragged_plan.h), the shard buffer of a rank is one piece
/// of the full buffer, with the gaps between parameters that are in it.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "crosshatch/comm/communicator.h"
#include "crosshatch/dtensor/layout/box.h"
#include "crosshatch/fsdp/plan_detail.h"
#include "crosshatch/fsdp/ragged_plan.h"
#include "crosshatch/tensor/dtype.h"
#include "crosshatch/tensor/shape.h"

namespace crosshatch::fsdp {

/// A parameter as a GroupPlan needs it.
struct PlannedParameter {
  std::string name;
  /// The gathered shape: the local one if another axis shards the parameter
  /// too.
  Shape full_shape;
  int shard_dim = 0;
  /// The interval of shard_dim on each shard rank. They are in order and
  /// disjoint, and cover the dim.
  std::vector<Interval> intervals;
};

/// The layout of a group's buffers.
class GroupPlan {
 public:
  /// \param num_shards number of ranks along the sharding axis.
  GroupPlan(std::vector<PlannedParameter> parameters, int num_shards);
  /// The plan of a ragged group.
  /// \param offsets of the parameters in the full buffer, ascending multiples
  ///     of kFullAlignment
  /// \param slot_elems the size of each rank's piece, or 0: pieces end where
  ///     the next rank's shards begin
  static GroupPlan Ragged(std::vector<PlannedParameter> parameters,
                          int num_shards, std::vector<int64_t> offsets,
                          int64_t slot_elems);

  /// Returns the same full parameters with `num_shards` shards, each of which
  /// joins neighbouring ones.
  /// \pre num_shards divides this plan's
  GroupPlan Coarser(int num_shards) const;

  int num_shards() const { return num_shards_; }
  int num_parameters() const { return static_cast<int>(parameters_.size()); }
  const PlannedParameter& parameter(int i) const {
    return parameters_[static_cast<size_t>(i)];
  }

  /// Return the buffers' sizes in elements.
  int64_t full_elems() const { return full_elems_; }
  int64_t shard_elems(int rank) const {
    return shard_elems_[static_cast<size_t>(rank)];
  }
  /// Return the index of the first element of parameter i.
  int64_t full_offset(int i) const {
    return full_offsets_[static_cast<size_t>(i)];
  }
  int64_t shard_offset(int i, int rank) const;
  /// Returns the elements of the full buffer that belong to no parameter but
  /// move with a ragged group's pieces.
  const std::vector<Interval>& moved_gaps() const { return moved_gaps_; }
  /// Returns the shape of `rank`'s shard of parameter i.
  Shape ShardShape(int i, int rank) const;

  /// Returns the segments of the full buffer at `full` that make up the shard
  /// buffer of `rank`, in its order.
  SegmentList FullSegments(void* full, DType dtype, int rank) const;
  /// Returns the one segment of the whole shard buffer of `rank`.
  SegmentList ShardSegments(void* shard, int rank) const;

  /// Returns "ragged: 4 pieces of 96 elements", or "" if the group is not
  /// ragged.
  std::string DescribePieces() const;
  /// Returns one line per parameter.
  std::string ToString(PlanDetail detail = PlanDetail::kSummary) const;
  /// Returns the line of parameter i, without a line end.
  std::string ToString(int i, PlanDetail detail = PlanDetail::kSummary) const;

 private:
  /// Sets the offsets and the pieces of a ragged group.
  void SetPieces(std::vector<int64_t> offsets, int64_t slot_elems);

  std::vector<PlannedParameter> parameters_;
  int num_shards_;
  int64_t full_elems_ = 0;
  std::vector<int64_t> full_offsets_;
  std::vector<int64_t> shard_elems_;
  std::vector<std::vector<int64_t>> shard_offsets_;  // [parameter][rank]
  /// The begins of a ragged group's pieces, and the end of the last; else
  /// empty.
  std::vector<int64_t> piece_begins_;
  int64_t slot_elems_ = 0;
  std::vector<Interval> moved_gaps_;
};

}  // namespace crosshatch::fsdp

#endif  // CROSSHATCH_FSDP_GROUP_PLAN_H_
