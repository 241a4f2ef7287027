// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_RULES_OP_RULES_H_
#define CROSSHATCH_DTENSOR_RULES_OP_RULES_H_

/// \file
/// The table of sharding rules of Crosshatch's own ops. Backward formulas
/// consist of ops, so the table includes the ops that they use.

#include "absl/container/flat_hash_map.h"
#include "crosshatch/dtensor/rules/op_rule.h"

namespace crosshatch {

/// The rule of each op, by the op's address.
using OpRuleTable = absl::flat_hash_map<const OpInfo*, OpRuleEntry>;

/// Returns the table, which the first call creates and nothing changes.
/// \threadsafety Any thread.
const OpRuleTable& BuiltinOpRules();

/// \name The parts of the table
/// @{
void AddPointwiseRules(OpRuleTable& table);
void AddViewRules(OpRuleTable& table);
void AddReductionRules(OpRuleTable& table);
void AddMatMulRules(OpRuleTable& table);
/// Normalizations, rotary embedding, embedding.
void AddLayerRules(OpRuleTable& table);
void AddAttentionRules(OpRuleTable& table);
void AddCrossEntropyRules(OpRuleTable& table);
/// Gather, scatter and the like; dropout, which also depends on indices.
void AddIndexRules(OpRuleTable& table);
/// Cumulative sums and sorts.
void AddScanAndSortRules(OpRuleTable& table);
/// Windows of images.
void AddWindowRules(OpRuleTable& table);
/// @}

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_RULES_OP_RULES_H_
