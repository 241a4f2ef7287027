// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_DISPATCH_DISPATCH_CACHE_H_
#define CROSSHATCH_DTENSOR_DISPATCH_DISPATCH_CACHE_H_

/// \file
/// What a rank keeps of how ops run on distributed tensors: the plans of calls
/// and the rules of the user's ops. It hangs on the RankContext.

#include <memory>

#include "absl/container/flat_hash_map.h"
#include "crosshatch/dtensor/dispatch/dispatch_plan.h"
#include "crosshatch/dtensor/redistribution/runtime.h"
#include "crosshatch/dtensor/rules/op_rule.h"
#include "crosshatch/tensor/op.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch {

/// \threadsafety the rank's thread only.
class DispatchCache final : public RankContext::Extension {
 public:
  static DispatchCache& Current();

  /// The rule that the user registered for an op; null if none.
  const OpRuleEntry* UserRule(const OpInfo& info) const;
  void AddUserRule(const OpInfo& info, OpRuleEntry entry);

  /// By call, at most DTensorRuntime::kMaxPlans; shared with the calls whose
  /// programs run.
  MapByNumbers<std::shared_ptr<DispatchPlan>>& plans() { return plans_; }

 private:
  MapByNumbers<std::shared_ptr<DispatchPlan>> plans_;
  absl::flat_hash_map<const OpInfo*, OpRuleEntry> rules_;
};

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_DISPATCH_DISPATCH_CACHE_H_
