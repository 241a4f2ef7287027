// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_DISPATCH_REGISTER_OP_RULE_H_
#define CROSSHATCH_DTENSOR_DISPATCH_REGISTER_OP_RULE_H_

/// \file
/// Registers rules for a user's own ops. dtensor/rules/op_rule.h defines rules
/// and FactorRule, the form of nearly all of them:
///
///     RegisterOpRule(MyOp::kInfo, [](const RuleCall& call) {
///       return SolveFactors(call, PointwiseFactors(call, Linearity::kNone));
///     });

#include <cstdint>

#include "crosshatch/dtensor/rules/op_rule.h"

namespace crosshatch {

/// Registers the rule of an op on this rank, replacing any other. Every rank of
/// a job registers the same rules. The rule ends with the rank's context.
/// \param plain_inputs bit i: input i may be a plain tensor among distributed
///     ones (OpRuleEntry).
void RegisterOpRule(const OpInfo& info, OpRule rule, uint32_t plain_inputs = 0);

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_DISPATCH_REGISTER_OP_RULE_H_
