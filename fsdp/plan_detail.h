// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_FSDP_PLAN_DETAIL_H_
#define CROSSHATCH_FSDP_PLAN_DETAIL_H_

namespace crosshatch::fsdp {

/// How much of a plan is printed.
enum class PlanDetail {
  /// Of more than 8 shards how many have which size, in order: the intervals
  /// follow one another, so nothing is lost.
  kSummary,
  kEveryRank,  ///< Each rank's interval.
};

}  // namespace crosshatch::fsdp

#endif  // CROSSHATCH_FSDP_PLAN_DETAIL_H_
