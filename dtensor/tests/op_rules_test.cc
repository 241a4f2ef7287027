// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/rules/op_rules.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "crosshatch/dtensor/layout/layout.h"
#include "crosshatch/dtensor/rules/op_rule.h"
#include "crosshatch/dtensor/tests/op_rule_cases.h"
#include "crosshatch/tensor/ops/norm.h"
#include "crosshatch/tensor/ops/ops.h"

namespace crosshatch {
namespace {

using MeshShape = std::vector<int>;

class OpRules
    : public testing::TestWithParam<std::tuple<RuleFamily, MeshShape>> {};

// Runs each call with every combination of its inputs' layouts. If there are
// more than 60 (on two axes 20), it takes an even sample. op_rules_nightly_test
// takes more.
TEST_P(OpRules, GiveWhatPlainTensorsGive) {
  const auto& [family, mesh] = GetParam();
  const RuleTally tally = CheckRules(mesh, family, mesh.size() == 1 ? 60 : 20);
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

// An op may keep a pending reduction only if that is correct.
TEST_P(OpRulesOnOtherLayouts, GiveWhatPlainTensorsGiveFromPendingReductions) {
  const auto& [family, mesh] = GetParam();
  CheckRules(mesh, family, /*most=*/20,
             {.reductions = {ReduceOp::kAvg, ReduceOp::kProduct, ReduceOp::kMin,
                             ReduceOp::kMax}});
}

// Splits into pairs of elements.
TEST_P(OpRulesOnOtherLayouts, GiveWhatPlainTensorsGiveInUnits) {
  const auto& [family, mesh] = GetParam();
  CheckRules(mesh, family, /*most=*/20, {.unit = 2});
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

class NormBackward : public testing::TestWithParam<bool> {};

// With the gradient of the bias, two sums would be pending.
TEST_P(NormBackward, KeepsSumsWhereOnlyTheGradientOfXIsWanted) {
  const bool want_bias = GetParam();
  const MeshLayout mesh = *MeshLayout::Create({{"tp", 2}});
  const auto input = [&](const Shape& sizes, const char* placements) {
    return RuleInput{
        .layout = *Layout::FromPlacements(mesh, static_cast<int>(sizes.size()),
                                          *ParsePlacements(placements)),
        .sizes = sizes};
  };
  std::vector<RuleInput> inputs = {input({3, 5}, "[P(sum)]"),
                                   input({3, 5}, "[R]"), input({}, "[R]"),
                                   input({3}, "[R]"), input({3}, "[R]")};
  inputs[2].defined = false;
  const LayerNormBackwardOp op(/*want_dx=*/true, /*want_dweight=*/false,
                               want_bias);
  const MeshCoordinate here = {0};
  const RuleResult result =
      BuiltinOpRules().at(&op.info()).rule({op, inputs, mesh, here});
  EXPECT_EQ(result.inputs[0].is_partial(), !want_bias);
  EXPECT_EQ(result.outputs[0].layout.is_partial(), !want_bias);
  EXPECT_FALSE(want_bias && result.outputs[2].layout.is_partial());
}

INSTANTIATE_TEST_SUITE_P(All, NormBackward, testing::Bool());

TEST(OpRuleCases, TriesTheRequestedNumberOfLayouts) {
  RuleFamily family = {
      "equals",
      {{"add",
        {{{3, 5}}, {{3, 5}}},
        [](TensorSpan t) { return Add(t[0], t[1]); },
        [](absl::Span<const Layout> l) { return l[0] == l[1]; }}}};
  const MeshShape mesh = {2, 2};
  const int64_t layouts =
      CheckRules(
          mesh,
          {"square",
           {{"square", {{{3, 5}}}, [](TensorSpan t) { return Square(t[0]); }}}})
          .combinations;
  EXPECT_EQ(CheckRules(mesh, family).combinations, layouts);
  for (const int64_t most : {int64_t{1}, int64_t{7}, layouts - 1, layouts}) {
    EXPECT_EQ(CheckRules(mesh, family, static_cast<size_t>(most)).combinations,
              most);
  }
  family.cases[0].takes = nullptr;
  EXPECT_EQ(CheckRules(mesh, family, 50).combinations, 50);
}

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
