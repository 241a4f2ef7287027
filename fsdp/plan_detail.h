// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_FSDP_PLAN_DETAIL_H_
#define CROSSHATCH_FSDP_PLAN_DETAIL_H_

namespace crosshatch::fsdp {

/// How much of a plan is printed.
enum class PlanDetail {
  /// For more than 8 shards, the count of each shard size, in order. The
  /// intervals follow from it, because they are adjacent.
  kSummary,
  kEveryRank,  ///< Each rank's interval.
};

}  // namespace crosshatch::fsdp

#endif  // CROSSHATCH_FSDP_PLAN_DETAIL_H_
