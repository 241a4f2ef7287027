// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_TESTS_OP_RULE_CASES_H_
#define CROSSHATCH_DTENSOR_TESTS_OP_RULE_CASES_H_

/// \file
/// Calls of every op that has a sharding rule, for the tests that compare each
/// on many layouts with the same call on plain tensors. An op that gets a rule
/// gets a case here.

#include <vector>

#include "crosshatch/dtensor/op_rule_check.h"

namespace crosshatch {

/// All there are.
std::vector<RuleFamily> RuleFamilies();

/// \name By family
/// @{
std::vector<RuleCase> PointwiseCases();
std::vector<RuleCase> InPlaceCases();
std::vector<RuleCase> ReductionCases();
std::vector<RuleCase> StatisticsCases();
/// Running sums and sorts.
std::vector<RuleCase> LaneCases();
std::vector<RuleCase> ViewCases();
/// Windows of images, and convolutions.
std::vector<RuleCase> WindowCases();
std::vector<RuleCase> MatMulCases();
std::vector<RuleCase> LayerCases();
std::vector<RuleCase> AttentionCases();
std::vector<RuleCase> LookupCases();
std::vector<RuleCase> IndexCases();
/// Of ops whose gradients have gradients.
std::vector<RuleCase> TwiceCases();
/// @}

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_TESTS_OP_RULE_CASES_H_
