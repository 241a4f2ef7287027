// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_FSDP_GROUP_PLAN_H_
#define CROSSHATCH_FSDP_GROUP_PLAN_H_

/// \file
/// GroupPlan: where each parameter of a group lies in the group's buffers, and
/// which pieces move between them. A value; nothing here communicates.
///
/// A group has two kinds of buffers. The *shard* buffer of a rank holds its
/// shard of each parameter, one after the other, without gaps. The *full*
/// buffer holds each parameter whole and contiguous, starting at multiples of
/// kFullAlignment elements. Gathering writes the piece of a peer's shard buffer
/// straight to its place in the full one; reducing reads it from there. For a
/// parameter sharded on dim 0 a piece is one run; on another dim it is a run
/// for each index of the dims before.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "crosshatch/comm/communicator.h"
#include "crosshatch/dtensor/box.h"
#include "crosshatch/fsdp/plan_detail.h"
#include "crosshatch/tensor/dtype.h"
#include "crosshatch/tensor/shape.h"

namespace crosshatch::fsdp {

/// 64 bytes of float32: full parameters start on cache lines.
inline constexpr int64_t kFullAlignment = 16;

/// What the plan needs to know of a parameter.
struct PlannedParameter {
  std::string name;
  /// The shape to gather: local, where something else shards it as well.
  Shape full_shape;
  int shard_dim = 0;
  /// By shard rank: the interval of shard_dim it holds. In order, disjoint, and
  /// together all of the dim.
  std::vector<Interval> intervals;
};

class GroupPlan {
 public:
  /// \param num_shards ranks along the sharding axis.
  GroupPlan(std::vector<PlannedParameter> parameters, int num_shards);

  int num_shards() const { return num_shards_; }
  int num_parameters() const { return static_cast<int>(parameters_.size()); }
  const PlannedParameter& parameter(int i) const {
    return parameters_[static_cast<size_t>(i)];
  }

  /// Elements of the buffers.
  int64_t full_elems() const { return full_elems_; }
  int64_t shard_elems(int rank) const {
    return shard_elems_[static_cast<size_t>(rank)];
  }
  /// First element of parameter i.
  int64_t full_offset(int i) const {
    return full_offsets_[static_cast<size_t>(i)];
  }
  int64_t shard_offset(int i, int rank) const;
  /// The shape of rank's shard of parameter i.
  Shape ShardShape(int i, int rank) const;

  /// The pieces of a full buffer at `full` that make up `rank`'s shard buffer,
  /// in its order.
  SegmentList FullSegments(void* full, DType dtype, int rank) const;
  /// A whole shard buffer.
  SegmentList ShardSegments(void* shard, int rank) const;

  /// A line for each parameter.
  std::string ToString(PlanDetail detail = PlanDetail::kSummary) const;
  /// Parameter i's, without its end.
  std::string ToString(int i, PlanDetail detail = PlanDetail::kSummary) const;

 private:
  std::vector<PlannedParameter> parameters_;
  int num_shards_;
  int64_t full_elems_ = 0;
  std::vector<int64_t> full_offsets_;
  std::vector<int64_t> shard_elems_;
  std::vector<std::vector<int64_t>> shard_offsets_;  // [parameter][rank]
};

}  // namespace crosshatch::fsdp

#endif  // CROSSHATCH_FSDP_GROUP_PLAN_H_
