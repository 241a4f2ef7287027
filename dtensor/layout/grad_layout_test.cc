// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/layout/grad_layout.h"

#include <gtest/gtest.h>

#include <string>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "crosshatch/dtensor/layout/layout_testutil.h"

namespace crosshatch {
namespace {

// Decides for one axis by the table in the header.
bool Fits(const AxisState& state, const AxisState& grad, bool border) {
  if (state.is_partial() && border && state.op != ReduceOp::kSum) return false;
  if (grad.is_partial()) {
    return state.is_replicate() && grad.op == ReduceOp::kSum;
  }
  if (state.is_shard()) return grad == state;
  return grad.is_replicate();
}

TEST(GradLayout, AcceptsTheLayoutsOfTheTable) {
  const MeshLayout mesh = OracleMesh({2, 3});
  const std::vector<Layout> layouts =
      AllLayouts(mesh, 2, {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMax});
  int fits = 0;
  for (const Layout& layout : layouts) {
    EXPECT_TRUE(CheckGradLayout("t", layout, layout.WithoutPartials()).ok());
    for (const Layout& grad : layouts) {
      for (const bool border : {false, true}) {
        bool expected = true;
        for (int axis = 0; axis < mesh.ndim(); ++axis) {
          expected = expected && Fits(layout.state_of_axis(axis),
                                      grad.state_of_axis(axis), border);
        }
        // The order of the axes that split a dim counts too.
        for (int d = 0; d < layout.ndim(); ++d) {
          expected = expected && layout.sharding(d) == grad.sharding(d);
        }
        const absl::Status status =
            border ? CheckBoundaryGradLayout("t", layout, grad)
                   : CheckGradLayout("t", layout, grad);
        EXPECT_EQ(status.ok(), expected) << layout.ToString() << ", gradient "
                                         << grad.ToString() << ": " << status;
        fits += expected ? 1 : 0;
      }
    }
  }
  EXPECT_GT(fits, static_cast<int>(layouts.size()));
}

TEST(GradLayout, IsOfTheTensorsMeshAndDims) {
  const Layout matrix = LayoutOf(OracleMesh({2}), 2, "[R]");
  const auto expect = [&](const Layout& grad, const char* message) {
    const absl::Status status = CheckGradLayout("weight", matrix, grad);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_TRUE(absl::StrContains(status.message(), message)) << status;
  };
  expect(LayoutOf(OracleMesh({2}), 1, "[R]"),
         "weight: the layout [R] of its gradient is of 1 dims, the tensor has "
         "2");
  expect(LayoutOf(OracleMesh({3}), 2, "[R]"), "is on mesh(dp=3)");
}

}  // namespace
}  // namespace crosshatch
