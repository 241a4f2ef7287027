// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <vector>

#include "crosshatch/dtensor/tests/op_rule_cases.h"

namespace crosshatch {
namespace {

// Attention on two mesh axes has 64,000 combinations of its three inputs'
// layouts, and with all options a hundred million. The test takes an even
// sample of this size.
constexpr size_t kMost = 4000;

// Every op on every layout of each of its inputs.
class OpRulesExhaustive : public testing::TestWithParam<RuleFamily> {};

TEST_P(OpRulesExhaustive, GiveWhatPlainTensorsGive) {
  RuleTally tally;
  for (const std::vector<int>& mesh :
       {std::vector<int>{2}, std::vector<int>{3}, std::vector<int>{4},
        std::vector<int>{2, 2}}) {
    tally.Add(CheckRules(mesh, GetParam(), kMost));
    if (mesh.size() == 1) {
      tally.Add(CheckRules(mesh, GetParam(), kMost, {.unit = 2}));
    }
  }
  // More reductions make many more combinations of three inputs.
  for (const int ranks : {2, 3}) {
    tally.Add(CheckRules(
        {ranks}, GetParam(), /*most=*/5000,
        {.reductions = {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kProduct,
                        ReduceOp::kMin, ReduceOp::kMax}}));
  }
  std::printf("%s: %zu ops, %lld combinations of layouts, %lld calls\n",
              GetParam().name, tally.ops.size(),
              static_cast<long long>(tally.combinations),
              static_cast<long long>(tally.calls));
}

INSTANTIATE_TEST_SUITE_P(All, OpRulesExhaustive,
                         testing::ValuesIn(RuleFamilies()),
                         [](const auto& info) {
                           return std::string(info.param.name);
                         });

}  // namespace
}  // namespace crosshatch
