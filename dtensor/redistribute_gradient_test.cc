// SPDX-License-Identifier: Apache-2.0

/// \file
/// First and second derivatives through every redistribution, with the gradient
/// in every layout that it can have.

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/dtensor/dtensor_testutil.h"
#include "crosshatch/dtensor/layout/layout_testutil.h"
#include "crosshatch/dtensor/redistribute.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/pointwise.h"
#include "crosshatch/tensor/ops/reduce.h"
#include "crosshatch/testing/ranks.h"

namespace crosshatch {
namespace {

/// Returns the layouts that gradients of a tensor in `layout` may have:
/// replicated axes may have pending sums.
std::vector<Layout> GradientLayouts(const Layout& layout) {
  std::vector<Layout> layouts = {layout};
  for (int axis = 0; axis < layout.mesh().ndim(); ++axis) {
    if (layout.state_of_axis(axis).is_shard()) continue;
    std::vector<Layout> wider;
    for (const Layout& other : layouts) {
      wider.push_back(other.WithReplicate(axis));
      // Each summand of a pending sum has the whole gradient.
      if (layout.state_of_axis(axis).is_partial()) continue;
      wider.push_back(other.WithPartial(axis, ReduceOp::kSum));
    }
    layouts = std::move(wider);
  }
  return layouts;
}

void CheckGradients(const std::vector<int>& shape, const Shape& sizes) {
  OnMesh(shape, [&](const DeviceMesh& mesh) {
    const Tensor dense = Numbers(sizes, 1);
    const Tensor weight = Numbers(sizes, 2);
    const auto layouts =
        AllLayouts(mesh.layout(), static_cast<int>(sizes.size()), true);
    for (const Layout& from : layouts) {
      for (const Layout& to : layouts) {
        for (const Layout& gradient : GradientLayouts(to)) {
          const std::string name =
              absl::StrCat(from.ToString(), " -> ", to.ToString(),
                           ", gradient ", gradient.ToString());
          Tensor x = Spread(dense, mesh, from);
          x.set_requires_grad(true);
          const Tensor inputs[] = {x};
          const Tensor part =
              ToLocal(Redistribute(x, to), /*grad_layout=*/gradient);
          // The ranks' parts of the weight in that layout: the gradient of the
          // sum of their products is the weight.
          const Tensor factor = LocalTensor(Spread(weight, mesh, gradient));
          TensorList first = Gradients(Sum(Mul(part, factor)), inputs).value();
          CH_EXPECT_EQ(Differs(first[0], weight), "") << name;
          // Without redistribution the gradient does not change.
          if (from != to && !from.is_partial()) {
            CH_EXPECT_EQ(LayoutOf(first[0]), from) << name;
          }

          // Squares of summands are not summands of squares.
          if (to.is_partial()) continue;
          const Tensor again =
              ToLocal(Redistribute(x, to), /*grad_layout=*/gradient);
          first = Gradients(Sum(Mul(Mul(again, again), factor)), inputs,
                            {.create_graph = true})
                      .value();
          CH_EXPECT_EQ(Differs(first[0], Mul(Mul(dense, weight), 2)), "")
              << name;
          const TensorList second =
              Gradients(Sum(Mul(first[0], Replicated(dense, mesh))), inputs)
                  .value();
          CH_EXPECT_EQ(Differs(second[0], Mul(Mul(dense, weight), 2)), "")
              << name;
        }
      }
    }
  });
}

TEST(RedistributeGradient, OfMatricesOnTwoRanks) {
  CheckGradients({2}, {5, 3});
  CheckGradients({2}, {1, 4});
}

TEST(RedistributeGradient, OfMatricesOnThreeRanks) {
  CheckGradients({3}, {4, 2});
}

TEST(RedistributeGradient, OfVectorsOnTwoByTwoRanks) {
  CheckGradients({2, 2}, {5});
  CheckGradients({2, 2}, {3});
}

TEST(RedistributeGradient, OfScalars) { CheckGradients({2, 2}, {}); }

}  // namespace
}  // namespace crosshatch
