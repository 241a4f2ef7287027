// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_TESTS_OP_RULE_CASES_H_
#define CROSSHATCH_DTENSOR_TESTS_OP_RULE_CASES_H_

/// \file
/// Calls of every op that has a sharding rule, for tests that compare each one,
/// on many layouts, with the same call on plain tensors. An op with a new rule
/// gets a case here.

#include <vector>

#include "crosshatch/dtensor/op_rule_check.h"

namespace crosshatch {

/// Returns all families.
std::vector<RuleFamily> RuleFamilies();

/// \name By family
/// @{
std::vector<RuleCase> PointwiseCases();
std::vector<RuleCase> InPlaceCases();
std::vector<RuleCase> ReductionCases();
std::vector<RuleCase> StatisticsCases();
/// Cumulative sums and sorts.
std::vector<RuleCase> ScanAndSortCases();
std::vector<RuleCase> ViewCases();
/// Windows of images, and convolutions.
std::vector<RuleCase> WindowCases();
std::vector<RuleCase> MatMulCases();
std::vector<RuleCase> LayerCases();
std::vector<RuleCase> AttentionCases();
std::vector<RuleCase> LookupCases();
std::vector<RuleCase> IndexCases();
/// Of ops whose gradients are differentiable.
std::vector<RuleCase> TwiceCases();
/// @}

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_TESTS_OP_RULE_CASES_H_
