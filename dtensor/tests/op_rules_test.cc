// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/rules/op_rules.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "crosshatch/dtensor/tests/op_rule_cases.h"

namespace crosshatch {
namespace {

using MeshShape = std::vector<int>;

class OpRules
    : public testing::TestWithParam<std::tuple<RuleFamily, MeshShape>> {};

// On one axis in every combination of layouts, on two in a sample of them;
// op_rules_nightly_test takes all.
TEST_P(OpRules, GiveWhatPlainTensorsGive) {
  const auto& [family, mesh] = GetParam();
  const RuleTally tally = CheckRules(mesh, family, mesh.size() == 1 ? 250 : 60);
  std::printf("%s: %lld combinations of layouts, %lld different calls\n",
              family.name, static_cast<long long>(tally.combinations),
              static_cast<long long>(tally.calls));
}

INSTANTIATE_TEST_SUITE_P(All, OpRules,
                         testing::Combine(testing::ValuesIn(RuleFamilies()),
                                          testing::Values(MeshShape{2},
                                                          MeshShape{3},
                                                          MeshShape{2, 2})),
                         [](const auto& info) {
                           std::string name = absl::StrCat(
                               std::get<RuleFamily>(info.param).name, "On");
                           for (int n : std::get<MeshShape>(info.param))
                             absl::StrAppend(&name, n);
                           return name;
                         });

class OpRulesOnOtherLayouts
    : public testing::TestWithParam<std::tuple<RuleFamily, MeshShape>> {};

// Whatever reduction is pending, an op keeps it only where that is right.
TEST_P(OpRulesOnOtherLayouts, GiveWhatPlainTensorsGiveFromPendingReductions) {
  const auto& [family, mesh] = GetParam();
  CheckRules(mesh, family, /*most=*/80,
             {.reductions = {ReduceOp::kAvg, ReduceOp::kProduct, ReduceOp::kMin,
                             ReduceOp::kMax}});
}

// Splits into pairs of elements.
TEST_P(OpRulesOnOtherLayouts, GiveWhatPlainTensorsGiveInUnits) {
  const auto& [family, mesh] = GetParam();
  CheckRules(mesh, family, /*most=*/40, {.unit = 2});
}

INSTANTIATE_TEST_SUITE_P(All, OpRulesOnOtherLayouts,
                         testing::Combine(testing::ValuesIn(RuleFamilies()),
                                          testing::Values(MeshShape{2},
                                                          MeshShape{3})),
                         [](const auto& info) {
                           std::string name = absl::StrCat(
                               std::get<RuleFamily>(info.param).name, "On");
                           for (int n : std::get<MeshShape>(info.param))
                             absl::StrAppend(&name, n);
                           return name;
                         });

TEST(OpRuleCases, ThereIsOneForEveryOp) {
  RuleTally tally;
  for (const RuleFamily& family : RuleFamilies()) {
    tally.Add(CheckRules({2}, family, /*most=*/2));
  }
  for (const auto& [op, entry] : BuiltinOpRules()) {
    EXPECT_TRUE(tally.ops.contains(op))
        << "no case in op_rule_cases.h calls " << op->name;
  }
}

}  // namespace
}  // namespace crosshatch
