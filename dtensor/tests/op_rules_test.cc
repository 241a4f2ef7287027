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
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "crosshatch/dtensor/layout/layout.h"
#include "crosshatch/dtensor/layout/layout_testutil.h"
#include "crosshatch/dtensor/rules/op_rule.h"
#include "crosshatch/dtensor/tests/op_rule_cases.h"
#include "crosshatch/tensor/ops/norm.h"
#include "crosshatch/tensor/ops/ops.h"

namespace crosshatch {
namespace {

using MeshShape = std::vector<int>;

// Returns how many combinations of its inputs' layouts each call runs with: an
// even sample. Nightly, CROSSHATCH_RULE_LAYOUTS takes more. Attention on two
// mesh axes has 64,000 combinations of its three inputs' layouts, and with all
// options a hundred million.
size_t Most(size_t otherwise) {
  return FuzzCases("CROSSHATCH_RULE_LAYOUTS", static_cast<unsigned>(otherwise));
}
bool IsNightly() { return Most(0) != 0; }

std::vector<MeshShape> Meshes(int max_ndim) {
  std::vector<MeshShape> meshes = {{2}, {3}};
  if (IsNightly()) meshes.push_back({4});
  if (max_ndim > 1) meshes.push_back({2, 2});
  return meshes;
}

using FamilyOnMesh = std::tuple<RuleFamily, MeshShape>;

std::string NameOf(const testing::TestParamInfo<FamilyOnMesh>& info) {
  return absl::StrCat(std::get<RuleFamily>(info.param).name, "On",
                      absl::StrJoin(std::get<MeshShape>(info.param), ""));
}

class OpRules : public testing::TestWithParam<FamilyOnMesh> {};

TEST_P(OpRules, GiveWhatPlainTensorsGive) {
  const auto& [family, mesh] = GetParam();
  const RuleTally tally =
      CheckRules(mesh, family, Most(mesh.size() == 1 ? 60 : 20));
  std::printf("%s: %zu ops, %lld combinations of layouts, %lld calls\n",
              family.name, tally.ops.size(),
              static_cast<long long>(tally.combinations),
              static_cast<long long>(tally.calls));
}

INSTANTIATE_TEST_SUITE_P(All, OpRules,
                         testing::Combine(testing::ValuesIn(RuleFamilies()),
                                          testing::ValuesIn(Meshes(2))),
                         NameOf);

class OpRulesOnOtherLayouts : public testing::TestWithParam<FamilyOnMesh> {};

// An op may keep a pending reduction only if that is correct.
TEST_P(OpRulesOnOtherLayouts, GiveWhatPlainTensorsGiveFromPendingReductions) {
  const auto& [family, mesh] = GetParam();
  RuleLayouts tried = {.reductions = {ReduceOp::kAvg, ReduceOp::kProduct,
                                      ReduceOp::kMin, ReduceOp::kMax}};
  if (IsNightly()) tried.reductions.push_back(ReduceOp::kSum);
  CheckRules(mesh, family, Most(20), tried);
}

// Splits into pairs of elements.
TEST_P(OpRulesOnOtherLayouts, GiveWhatPlainTensorsGiveInUnits) {
  const auto& [family, mesh] = GetParam();
  CheckRules(mesh, family, Most(20), {.unit = 2});
}

INSTANTIATE_TEST_SUITE_P(All, OpRulesOnOtherLayouts,
                         testing::Combine(testing::ValuesIn(RuleFamilies()),
                                          testing::ValuesIn(Meshes(1))),
                         NameOf);

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
