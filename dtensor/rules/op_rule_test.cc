// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/rules/op_rule.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "crosshatch/dtensor/layout/layout_testutil.h"

namespace crosshatch {
namespace {

class AnyOp final : public Op {
 public:
  explicit AnyOp(bool in_place = false)
      : info_{.name = "any", .in_place = in_place} {}
  const OpInfo& info() const override { return info_; }
  TensorList Forward(TensorSpan) const override { return {}; }

 private:
  const OpInfo info_;
};

const MeshLayout& Mesh() {
  static const MeshLayout mesh = OracleMesh({2, 2});
  return mesh;
}

struct Input {
  Shape sizes;
  const char* placements;
};

RuleInput Describe(const Input& input) {
  return {.layout = LayoutOf(Mesh(), static_cast<int>(input.sizes.size()),
                             input.placements),
          .sizes = input.sizes};
}

// "inputs -> outputs" in PyTorch's notation.
std::string Solve(const std::vector<Input>& inputs,
                  const std::function<FactorRule(const RuleCall&)>& rule,
                  bool in_place = false) {
  const AnyOp op(in_place);
  std::vector<RuleInput> described;
  for (const Input& input : inputs) described.push_back(Describe(input));
  const MeshCoordinate here = {0, 0};
  const RuleCall call = {op, described, Mesh(), here};
  const RuleResult result = SolveFactors(call, rule(call));
  const auto join = [](const auto& list, auto layout_of) {
    return absl::StrJoin(list, " ", [&](std::string* out, const auto& item) {
      out->append(layout_of(item).ToString());
    });
  };
  return absl::StrCat(
      join(result.inputs, [](const Layout& l) { return l; }), " -> ",
      join(result.outputs,
           [](const RuleResult::Output& o) { return o.layout; }));
}

FactorRule Product(const RuleCall& call) {
  FactorRule rule = Einsum(call, "mk,kn->mn");
  rule.linearity = Linearity::kMultilinear;
  return rule;
}

FactorRule Sum(const RuleCall& call) {
  return PointwiseFactors(call, Linearity::kAdditive);
}

TEST(SolveFactors, KeepsLayoutsThatTheInputsShare) {
  // Column-wise, row-wise, both with split rows.
  EXPECT_EQ(Solve({{{4, 4}, "[R,R]"}, {{4, 4}, "[R,S(1)]"}}, Product),
            "[R,R] [R,S(1)] -> [R,S(1)]");
  EXPECT_EQ(Solve({{{4, 4}, "[R,S(1)]"}, {{4, 4}, "[R,S(0)]"}}, Product),
            "[R,S(1)] [R,S(0)] -> [R,P(sum)]");
  EXPECT_EQ(Solve({{{4, 4}, "[S(0),R]"}, {{4, 4}, "[R,S(1)]"}}, Product),
            "[S(0),R] [R,S(1)] -> [S(0),S(1)]");
}

TEST(SolveFactors, SlicesReplicatedInputs) {
  EXPECT_EQ(Solve({{{4, 4}, "[R,S(1)]"}, {{4, 4}, "[R,R]"}}, Product),
            "[R,S(1)] [R,S(0)] -> [R,P(sum)]");
}

TEST(SolveFactors, MovesTheSmallerInputWhereTheyDisagree) {
  // tp splits rows of one and columns of the other.
  EXPECT_EQ(Solve({{{64, 4}, "[R,S(0)]"}, {{4, 4}, "[R,S(1)]"}}, Product),
            "[R,S(0)] [R,R] -> [R,S(0)]");
  EXPECT_EQ(Solve({{{4, 4}, "[R,S(0)]"}, {{4, 64}, "[R,S(1)]"}}, Product),
            "[R,R] [R,S(1)] -> [R,S(1)]");
}

TEST(SolveFactors, KeepsTheAxesThatDoNotDisagree) {
  EXPECT_EQ(Solve({{{64, 4}, "[S(0),S(0)]"}, {{4, 4096}, "[R,S(1)]"}}, Product),
            "[S(0),R] [R,S(1)] -> [S(0),S(1)]");
}

TEST(SolveFactors, KeepsSumsPendingWhereTheOpIsLinear) {
  EXPECT_EQ(Solve({{{4}, "[P(sum),R]"}, {{4}, "[P(sum),R]"}}, Sum),
            "[P(sum),R] [P(sum),R] -> [P(sum),R]");
  EXPECT_EQ(Solve({{{4}, "[P(sum),R]"}, {{4}, "[R,R]"}}, Sum),
            "[R,R] [R,R] -> [R,R]");
  EXPECT_EQ(Solve({{{4}, "[P(sum),R]"}, {{4}, "[S(0),R]"}}, Sum),
            "[S(0),R] [S(0),R] -> [S(0),R]");
  EXPECT_EQ(Solve({{{4}, "[P(max),R]"}, {{4}, "[P(max),R]"}}, Sum),
            "[R,R] [R,R] -> [R,R]");
  EXPECT_EQ(Solve({{{4, 4}, "[P(sum),R]"}, {{4, 4}, "[R,R]"}}, Product),
            "[P(sum),R] [R,R] -> [P(sum),R]");
  EXPECT_EQ(Solve({{{4, 4}, "[P(sum),R]"}, {{4, 4}, "[P(sum),R]"}}, Product),
            "[R,R] [R,R] -> [R,R]");
}

TEST(SolveFactors, BroadcastDimsAreWhole) {
  EXPECT_EQ(Solve({{{4, 6}, "[S(0),S(1)]"}, {{6}, "[R,R]"}}, Sum),
            "[S(0),S(1)] [R,S(0)] -> [S(0),S(1)]");
  EXPECT_EQ(Solve({{{4, 6}, "[R,S(1)]"}, {{4, 1}, "[R,S(1)]"}}, Sum),
            "[R,S(1)] [R,R] -> [R,S(1)]");
}

TEST(SolveFactors, BringsAllToADestination) {
  EXPECT_EQ(Solve({{{4}, "[R,R]"}, {{4}, "[R,S(0)]"}}, Sum, true),
            "[R,R] [R,R] -> [R,R]");
  EXPECT_EQ(Solve({{{4}, "[S(0),R]"}, {{4}, "[R,S(0)]"}}, Sum, true),
            "[S(0),R] [S(0),R] -> [S(0),R]");
  EXPECT_EQ(Solve({{{4}, "[P(sum),R]"}, {{4}, "[S(0),R]"}}, Sum, true),
            "[P(sum),R] [P(sum),R] -> [P(sum),R]");
}

TEST(SolveFactorsDeathTest, RefusesToChangeADestination) {
  const auto none = [](const RuleCall& call) {
    return PointwiseFactors(call, Linearity::kNone);
  };
  EXPECT_DEATH(Solve({{{4}, "[P(sum),R]"}, {{4}, "[R,R]"}}, none, true),
               "any\\(f32\\[4\\]\\|\\[P\\(sum\\),R\\], .*pending");
}

TEST(Einsum, NamesFactorsAndWholeDims) {
  const auto solve = [](const std::vector<Input>& inputs, const char* spec,
                        const Shape& new_sizes = {}) {
    return Solve(inputs, [&](const RuleCall& call) {
      return Einsum(call, spec, new_sizes);
    });
  };
  // Rows of which the last dim is whole; remaining dims that broadcast.
  EXPECT_EQ(solve({{{4, 6}, "[S(0),S(1)]"}, {{6}, "[R,S(0)]"}}, "...C,C->...C"),
            "[S(0),R] [R,R] -> [S(0),R]");
  EXPECT_EQ(solve({{{2, 4, 6}, "[S(0),R]"}, {{1, 6, 3}, "[R,R]"}},
                  "...ik,...kn->...in"),
            "[S(0),R] [R,R] -> [S(0),R]");
  // A split factor that no output has; a new dim.
  EXPECT_EQ(solve({{{4, 6}, "[S(0),S(1)]"}}, "...->"),
            "[S(0),S(1)] -> [P(sum),P(sum)]");
  EXPECT_EQ(solve({{{4, 6}, "[S(0),S(1)]"}}, "bc->b_c", {5}),
            "[S(0),S(1)] -> [S(0),S(2)]");
}

TEST(EinsumDeathTest, NamesARuleThatDoesNotFit) {
  EXPECT_DEATH(Solve({{{4, 6}, "[R,R]"}},
                     [](const RuleCall& call) { return Einsum(call, "b->b"); }),
               "any\\(f32\\[4, 6\\].*: its rule is b->b");
}

TEST(SolveFactors, WidthsScaleUnits) {
  // Two query heads to each key head: queries split by pairs.
  const auto heads = [](const RuleCall& call) {
    FactorRule rule;
    const int groups = rule.Add(call.inputs[1].sizes[0]);
    rule.inputs = {{{groups, 2}}, {{groups, 1}}};
    rule.outputs = {{{{groups, 2}}, call.inputs[0].sizes}};
    return rule;
  };
  EXPECT_EQ(Solve({{{6}, "[R,R]"}, {{3}, "[R,S(0)]"}}, heads),
            "[R,S(0)/2] [R,S(0)] -> [R,S(0)/2]");
  EXPECT_EQ(Solve({{{6}, "[R,S(0)]"}, {{3}, "[R,R]"}}, heads),
            "[R,S(0)/2] [R,S(0)] -> [R,S(0)/2]");
}

}  // namespace
}  // namespace crosshatch
