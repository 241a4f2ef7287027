// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_DISPATCH_DISPATCH_CACHE_H_
#define CROSSHATCH_DTENSOR_DISPATCH_DISPATCH_CACHE_H_

/// \file
/// A rank's cache for ops on distributed tensors: the plans of calls, and the
/// rules of the user's ops. It belongs to the RankContext.

#include <memory>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "crosshatch/dtensor/redistribution/executor.h"
#include "crosshatch/dtensor/redistribution/runtime.h"
#include "crosshatch/dtensor/rules/op_rule.h"
#include "crosshatch/tensor/op.h"
#include "crosshatch/tensor/rank_context.h"
#include "crosshatch/tensor/shape.h"

namespace crosshatch {

/// A rule's result for one call, prepared for this rank.
struct DispatchPlan {
  struct Output {
    const InternedLayout* layout;
    Shape sizes;
    Shape local_sizes;
  };

  /// The redistribution of each input; null for one that keeps its layout.
  absl::InlinedVector<std::unique_ptr<PreparedPlan>, 3> redistribute;
  /// Whether some entry of `redistribute` is not null.
  bool redistributes = false;
  absl::InlinedVector<Output, 2> outputs;
  std::unique_ptr<Op> local_op;
  LocalProgram program;
  bool in_place = false;
  bool view = false;
  /// Whether input 0 has other shards after redistribution on some rank.
  bool moves_first = false;
  /// Whether input 0 is redistributed by communication, on every rank.
  bool moves_apart = false;
};

/// \threadsafety The rank's thread only.
class DispatchCache final : public RankContext::Extension {
 public:
  static DispatchCache& Current();

  /// Returns the rule that the user registered for an op; null if none.
  const OpRuleEntry* UserRule(const OpInfo& info) const;
  void AddUserRule(const OpInfo& info, OpRuleEntry entry);

  /// Returns the plans by call, at most DTensorRuntime::kMaxPlans. A plan is
  /// shared with calls whose programs run.
  MapByNumbers<std::shared_ptr<DispatchPlan>>& plans() { return plans_; }

 private:
  MapByNumbers<std::shared_ptr<DispatchPlan>> plans_;
  absl::flat_hash_map<const OpInfo*, OpRuleEntry> rules_;
};

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_DISPATCH_DISPATCH_CACHE_H_
