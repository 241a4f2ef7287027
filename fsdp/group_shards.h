// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_FSDP_GROUP_SHARDS_H_
#define CROSSHATCH_FSDP_GROUP_SHARDS_H_

/// \file
/// What each rank keeps of a group's parameters, from the options.

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "crosshatch/fsdp/group_core.h"
#include "crosshatch/fsdp/group_plan.h"
#include "crosshatch/fsdp/policy.h"

namespace crosshatch::fsdp {

/// Returns the dim that `parameter` is sharded on.
/// \error kInvalidArgument naming a parameter that cannot be sharded on it.
absl::StatusOr<int> ShardDim(const nn::Parameter& parameter,
                             const FullyShardOptions& options);

/// Returns the interval of `dim` on each shard rank, relative to the start of
/// this rank's unsharded local tensor.
std::vector<Interval> ShardIntervals(const ShardedForm& form, int fsdp_axis,
                                     ShapeView global_shape, int dim);

/// Returns the plan of a ragged group, and sets the cuts of the members'
/// layouts.
///
/// Ranks at other coordinates of tensor parallelism may have fewer rows, but a
/// layout has one list of cuts: that for coordinate 0, which has most. The
/// others cut where it does, so their pieces may be uneven.
absl::StatusOr<GroupPlan> MakeRagged(std::vector<PlannedParameter> planned,
                                     const std::vector<int>& fsdp_axes,
                                     const RaggedShard& ragged,
                                     std::vector<GroupMember>& members);

}  // namespace crosshatch::fsdp

#endif  // CROSSHATCH_FSDP_GROUP_SHARDS_H_
