// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_RULES_OP_RULES_H_
#define CROSSHATCH_DTENSOR_RULES_OP_RULES_H_

/// \file
/// The table of sharding rules of Crosshatch's own ops. Backward formulas are
/// written in ops, so that the ops they use stand in it too.

#include "absl/container/flat_hash_map.h"
#include "crosshatch/dtensor/rules/op_rule.h"

namespace crosshatch {

/// The rule of each op, found by the op's address.
using OpRuleTable = absl::flat_hash_map<const OpInfo*, OpRuleEntry>;

/// Made on first use, constant from then on. \threadsafety any thread.
const OpRuleTable& BuiltinOpRules();

/// \name The parts of the table
/// @{
void AddPointwiseRules(OpRuleTable& table);
void AddViewRules(OpRuleTable& table);
void AddReductionRules(OpRuleTable& table);
void AddMatMulRules(OpRuleTable& table);
/// Normalizations, rotary embedding, table look-up.
void AddLayerRules(OpRuleTable& table);
void AddAttentionRules(OpRuleTable& table);
void AddCrossEntropyRules(OpRuleTable& table);
/// Gather, scatter and their like; dropout, which goes by index too.
void AddIndexRules(OpRuleTable& table);
/// Running sums and sorts.
void AddLaneRules(OpRuleTable& table);
/// Windows of images.
void AddWindowRules(OpRuleTable& table);
/// @}

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_RULES_OP_RULES_H_
