// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/dtensor/dtensor_testutil.h"
#include "crosshatch/dtensor/layout/layout_testutil.h"
#include "crosshatch/dtensor/redistribute.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/testing/ranks.h"

namespace crosshatch {
namespace {

// Programs whose forward runs must also run backward. An op slices a replicated
// operand whose other operand is split, and the gradient comes back split, in a
// layout that forward never had. op_rules_test and random_programs_test pass
// gradients of every layout through every op; these programs produce such a
// gradient.

struct Program {
  const char* name;
  std::vector<Shape> inputs;
  // \returns an output whose loss depends on all elements.
  std::function<Tensor(TensorSpan)> run;
};

void PrintTo(const Program& program, std::ostream* out) {
  *out << program.name;
}

// Returns x times itself, split along `dim` if it is distributed.
Tensor TimesItsShard(const Tensor& x, int dim) {
  if (!x.is_distributed()) return Mul(x, x);
  return Mul(x, Redistribute(x, LayoutOf(x).WithShard(0, dim)));
}

std::vector<Program> Programs() {
  return {
      {"Reshape",
       {{4, 3}},
       [](TensorSpan t) { return TimesItsShard(Reshape(t[0], {12}), 0); }},
      {"ReshapeThatCutsRows",
       {{3, 4}},
       [](TensorSpan t) { return TimesItsShard(Reshape(t[0], {12}), 0); }},
      {"GroupNorm",
       {{2, 4, 3}},
       [](TensorSpan t) {
         const Tensor groups = Reshape(t[0], {2, 2, 6});
         const Tensor norm = LayerNorm(groups, Tensor(), Tensor(), 1e-5);
         return TimesItsShard(Reshape(norm, {2, 4, 3}), 2);
       }},
      {"Conv1d",
       {{2, 3, 5}, {4, 3, 2}, {4}},
       [](TensorSpan t) {
         return TimesItsShard(Conv1d(t[0], t[1], t[2], {.padding = 1}), 2);
       }},
      {"Conv1dOfGroups",
       {{2, 4, 5}, {4, 2, 2}},
       [](TensorSpan t) {
         return TimesItsShard(Conv1d(t[0], t[1], Tensor(), {.groups = 2}), 1);
       }},
      {"HeadsOfOneProjection",
       {{2, 3, 12}},
       [](TensorSpan t) {
         return TimesItsShard(Flatten(Unflatten(t[0], 2, {3, 4}), 1, 2), 1);
       }},
  };
}

Tensor Gradients(const Program& program, TensorSpan inputs, TensorList& grads) {
  const Tensor y = program.run(inputs);
  CH_EXPECT_OK(Backward(Sum(y)));
  for (const Tensor& input : inputs) grads.push_back(input.grad());
  return y;
}

class BackwardOfWhatRuns : public testing::TestWithParam<Program> {};

TEST_P(BackwardOfWhatRuns, GivesWhatOneRankGives) {
  const Program& program = GetParam();
  OnMeshes({{2}, {3}, {2, 2}}, [&](const DeviceMesh& mesh) {
    TensorList dense, inputs, expected, actual;
    for (const Shape& sizes : program.inputs) {
      dense.push_back(Fractions(sizes, static_cast<int>(dense.size()) + 1));
      inputs.push_back(Spread(dense.back(), mesh,
                              Whole(mesh, static_cast<int>(sizes.size()))));
      dense.back().set_requires_grad(true);
      inputs.back().set_requires_grad(true);
    }
    const Tensor y = Gradients(program, dense, expected);
    CH_EXPECT_EQ(Differs(Gradients(program, inputs, actual), y, 1e-5), "");
    for (size_t i = 0; i < expected.size(); ++i) {
      CH_EXPECT_EQ(Differs(actual[i], expected[i], 1e-5), "") << "of " << i;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(All, BackwardOfWhatRuns, testing::ValuesIn(Programs()),
                         [](const auto& info) {
                           return std::string(info.param.name);
                         });

// Backward may not redistribute, so the gradient fails.
TEST(BackwardOfWhatRunsDeathTest, NamesTheForwardOpWhereItMayNotRedistribute) {
  ExpectDeathOn(
      {2},
      "view, gradient of view: an input would be redistributed, which this "
      "scope forbids: \\[S\\(0\\)\\]",
      [](const DeviceMesh& mesh) {
        Tensor x = Spread(Numbers({3, 4}, 1), mesh, Whole(mesh, 2));
        x.set_requires_grad(true);
        const Tensor y = Reshape(x, {12});
        const Tensor split = Redistribute(
            Spread(Numbers({12}, 2), mesh, Whole(mesh, 1)), Rows(mesh, 1));
        const Tensor loss = Sum(Mul(y, split));
        const ForbidImplicitRedistribution forbid;
        CH_EXPECT_OK(Backward(loss));
      });
}

}  // namespace
}  // namespace crosshatch
