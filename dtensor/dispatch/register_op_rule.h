// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_DISPATCH_REGISTER_OP_RULE_H_
#define CROSSHATCH_DTENSOR_DISPATCH_REGISTER_OP_RULE_H_

/// \file
/// Rules for a user's own ops. op_rule.h says what a rule is, factor_rule.h
/// gives the form that nearly all take:
///
///     RegisterOpRule(MyOp::kInfo, [](const RuleCall& call) {
///       return SolveFactors(call, PointwiseFactors(call, Linearity::kNone));
///     });

#include <cstdint>

#include "crosshatch/dtensor/rules/op_rule.h"

namespace crosshatch {

/// Gives this rank the rule of an op, in place of the one that it has. Every
/// rank of a job registers the same ones. The rule goes with the rank's
/// context.
/// \param plain_inputs bit i: input i may be a plain tensor among distributed
///     ones (OpRuleEntry).
void RegisterOpRule(const OpInfo& info, OpRule rule, uint32_t plain_inputs = 0);

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_DISPATCH_REGISTER_OP_RULE_H_
