// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "crosshatch/dtensor/dispatch/register_op_rule.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/dtensor/dtensor_testutil.h"
#include "crosshatch/dtensor/rules/op_rule.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/tensor/rank_context.h"
#include "crosshatch/testing/ranks.h"

namespace crosshatch {
namespace {

// Errors that no rule can avoid name the op and the reason.

// Adjacent elements of the result would come from alternating ranks.
TEST(ViewErrorsDeathTest, FlattensOfSplitsThatNoLayoutExpresses) {
  ExpectDeathOn(
      {2},
      "view\\(f32\\[4, 6\\]\\|\\[S\\(1\\)\\]\\): no layout of a tensor "
      "of sizes \\[24\\] has the same elements on every rank: .*redistribute",
      [](const DeviceMesh& mesh) {
        Flatten(
            Spread(Numbers({4, 6}, 1), mesh, Whole(mesh, 2).WithShard(0, 1)));
      });
  ExpectDeathOn({2}, "no layout of a tensor of sizes \\[8, 6\\]",
                [](const DeviceMesh& mesh) {
                  Flatten(Spread(Numbers({2, 4, 6}, 1), mesh,
                                 Whole(mesh, 3).WithShard(0, 1)),
                          0, 1);
                });
}

// 6 elements on 4 ranks are 2, 2, 2 and none: no whole rows of 3.
TEST(ViewErrorsDeathTest, SplitsOfDimsThatCutRows) {
  ExpectDeathOn({4}, "no layout of a tensor of sizes \\[2, 3\\]",
                [](const DeviceMesh& mesh) {
                  View(Spread(Numbers({6}, 1), mesh, Rows(mesh, 1)), {2, 3});
                });
}

TEST(InPlaceErrorsDeathTest, WritesThatWouldEndPendingSums) {
  ExpectDeathOn({2},
                "fill_in_place.*the op writes in place to a tensor whose "
                "reductions are pending; redistribute first",
                [](const DeviceMesh& mesh) {
                  FillInPlace(Spread(Numbers({4}, 1), mesh, Sums(mesh, 1)), 5);
                });
  ExpectDeathOn(
      {2}, "mul_in_place.*reductions are pending", [](const DeviceMesh& mesh) {
        const Tensor sums = Spread(Numbers({4}, 1), mesh, Sums(mesh, 1));
        MulInPlace(sums, sums);
      });
}

TEST(InPlaceErrorsDeathTest, RefusesResultsThatAreTooLarge) {
  ExpectDeathOn({2},
                "add_in_place.*does not fit the tensor that it is written to",
                [](const DeviceMesh& mesh) {
                  AddInPlace(Spread(Numbers({5}, 1), mesh, Rows(mesh, 1)),
                             Spread(Numbers({4, 5}, 2), mesh, Rows(mesh)));
                });
}

class Overwrite final : public Op {
 public:
  static constexpr OpInfo kInfo = {.name = "overwrite", .in_place = true};
  const OpInfo& info() const override { return kInfo; }
  TensorList Forward(TensorSpan inputs) const override { return {inputs[0]}; }
};

TEST(InPlaceErrorsDeathTest, RulesThatWouldChangeTheLayout) {
  const auto write = [](const DeviceMesh& mesh) {
    Apply(Overwrite(), {Spread(Numbers({4}, 1), mesh, Rows(mesh, 1))});
  };
  ExpectDeathOn({2},
                "overwrite.*would change the layout of what it writes to; "
                "redistribute first",
                [&](const DeviceMesh& mesh) {
                  RegisterOpRule(Overwrite::kInfo, [](const RuleCall& call) {
                    FactorRule rule = PointwiseFactors(call, Linearity::kNone);
                    rule.inputs[0][0] = {};
                    return SolveFactors(call, rule);
                  });
                  write(mesh);
                });
  ExpectDeathOn({2},
                "overwrite.*the op writes in place and its rule needs "
                "\\[R\\]",
                [&](const DeviceMesh& mesh) {
                  RegisterOpRule(Overwrite::kInfo, [](const RuleCall& call) {
                    RuleResult result;
                    result.inputs = {Layout::Replicated(call.mesh, 1)};
                    result.outputs = {{result.inputs[0], {4}}};
                    return result;
                  });
                  write(mesh);
                });
}

TEST(NoRuleDeathTest, NamesRegisterOpRule) {
  ExpectDeathOn({2},
                "overwrite\\(f32\\[4\\]\\|\\[S\\(0\\)\\]\\): the op has no "
                "sharding rule; RegisterOpRule",
                [](const DeviceMesh& mesh) {
                  Apply(Overwrite(),
                        {Spread(Numbers({4}, 1), mesh, Rows(mesh, 1))});
                });
  // An op of the library for local tensors only.
  ExpectDeathOn(
      {2}, "cross_entropy_part.*RegisterOpRule", [](const DeviceMesh& mesh) {
        const Tensor rows = Spread(Numbers({4}, 1), mesh, Rows(mesh, 1));
        Apply(CrossEntropyPartOp(-100, 0, 4), {rows, rows, rows});
      });
}

// The index and the bound are those of the global tensor, whichever rank holds
// the element.
TEST(IndexErrorsDeathTest, NameTheIndexAndTheGlobalBound) {
  ExpectDeathOn(
      {2}, "index_select: index 5 is out of range: dim 0 has 5 elements",
      [](const DeviceMesh& mesh) {
        IndexSelect(Spread(Numbers({5, 2}, 1), mesh, Rows(mesh)), 0,
                    FromValues<int64_t>({2}, std::vector<int64_t>{1, 5}));
      });
  ExpectDeathOn(
      {2},
      "gather\\(f32\\[5, 2\\]\\|\\[S\\(0\\)\\], i64\\[2, 3\\] plain\\)"
      ": sizes must be equal but for dim 0",
      [](const DeviceMesh& mesh) {
        Gather(Spread(Numbers({5, 2}, 1), mesh, Rows(mesh)), 0,
               Zeros({2, 3}, kInt64));
      });
  // No rank has these elements, and each would assume that another has them.
  ExpectDeathOn({2},
                "embedding: id 5 at 1 is out of range: there are 5 rows in the "
                "table",
                [](const DeviceMesh& mesh) {
                  Embedding(FromValues<int64_t>({2}, {4, 5}),
                            Spread(Numbers({5, 2}, 1), mesh, Rows(mesh)));
                });
  for (int64_t target : {-1, 5, 7}) {
    ExpectDeathOn(
        {2},
        "cross_entropy: target -?[157] at 2 is out of range: there are 5 "
        "classes",
        [target](const DeviceMesh& mesh) {
          CrossEntropy(
              Spread(Numbers({3, 5}, 1), mesh, Whole(mesh, 2).WithShard(0, 1)),
              FromValues<int64_t>({3}, {0, -100, target}));
        });
  }
}

}  // namespace
}  // namespace crosshatch
