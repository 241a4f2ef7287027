// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

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

// Checks the layouts of results without communication, forward and backward.
// op_rules_test compares the values.

Tensor Ids(ShapeView sizes, std::vector<int64_t> ids) {
  return FromValues<int64_t>(sizes, ids);
}

struct Expected {
  const char* what;
  Tensor result;
  Layout layout;
};

void Check(const std::vector<Expected>& all) {
  for (const Expected& e : all) {
    CH_EXPECT_EQ(LayoutOf(e.result).ToString(), e.layout.ToString()) << e.what;
  }
}

TEST(IndexRules, OtherDimsStaySplit) {
  OnMesh({2}, [](const DeviceMesh& mesh) {
    const Layout columns = Whole(mesh, 2).WithShard(0, 1);
    const ForbidImplicitRedistribution forbid;
    Tensor a = Spread(Numbers({4, 3}, 1), mesh, columns);
    Tensor b = Spread(Numbers({2, 3}, 2), mesh, columns);
    a.set_requires_grad(true);
    b.set_requires_grad(true);
    const Tensor index = Ids({2, 3}, {3, 0, 1, 3, 2, 2});
    const std::vector<Expected> all = {
        {"gather", Gather(a, 0, index), columns},
        {"index_select", IndexSelect(a, 0, Ids({2}, {3, 3})), columns},
        {"scatter_add", ScatterAdd(a, 0, index, b), columns},
        {"scatter", Scatter(a, 0, index, b), columns},
        {"a scattered value", Scatter(a, 0, index, 1), columns},
    };
    Check(all);
    for (const Expected& e : all) {
      // The sum has one element, so its gradient is replicated.
      const absl::Status status = Backward(Sum(e.result));
      CH_EXPECT_OK(status);
    }
    Check({{"a's gradient", a.grad(), columns},
           {"b's gradient", b.grad(), columns}});
  });
}

TEST(IndexRules, LookUpInASplitDimGivesASum) {
  OnMesh({2}, [](const DeviceMesh& mesh) {
    const Layout whole = Whole(mesh, 2);
    const Layout rows = whole.WithShard(0, 0);
    const Layout sums = whole.WithPartial(0, ReduceOp::kSum);
    const ForbidImplicitRedistribution forbid;
    const Tensor a = Spread(Numbers({5, 3}, 1), mesh, rows);
    const Tensor src = Spread(Numbers({2, 3}, 1), mesh, whole);
    const Tensor index = Ids({2, 3}, {3, 0, 1, 3, 2, 4});
    Check({{"gather", Gather(a, 0, index), sums},
           {"index_select", IndexSelect(a, 0, Ids({2}, {4, 3})), sums},
           // Each rank takes the elements of its rows.
           {"scatter_add", ScatterAdd(a, 0, index, src), rows},
           {"scatter", Scatter(a, 0, index, src), rows}});
  });
}

// Gathers one row per index, e.g. for the rows of a batch.
TEST(IndexRules, IndicesStaySplit) {
  OnMesh({3}, [](const DeviceMesh& mesh) {
    const Layout whole = Whole(mesh, 2);
    const Layout rows = whole.WithShard(0, 0);
    const ForbidImplicitRedistribution forbid;
    const Tensor a = Spread(Numbers({5, 3}, 1), mesh, whole);
    const Tensor index =
        DistributeTensor(Ids({4}, {4, 0, 1, 3}), mesh, Rows(mesh, 1));
    Check({{"index_select", IndexSelect(a, 0, index), rows}});
  });
}

TEST(SliceRule, KeepsTheSplit) {
  OnMesh({2, 2}, [](const DeviceMesh& mesh) {
    const ForbidImplicitRedistribution forbid;
    const Layout whole = Whole(mesh, 2);
    for (const Layout& layout :
         {whole, whole.WithShard(0, 1), whole.WithShard(1, 1).WithShard(0, 1),
          whole.WithShard(0, 0).WithShard(1, 1),
          whole.WithDim(1, {.axes = {1}, .unit = 2}),
          whole.WithShard(0, 1).WithPartial(1, ReduceOp::kSum)}) {
      Tensor x = Spread(Numbers({3, 8}, 1), mesh, layout);
      x.set_requires_grad(true);
      const Tensor part = Slice(x, 1, 2, 7);
      Check({{"slice", part, layout},
             {"narrow", Narrow(x, 1, 0, 1), layout},
             {"chunk", Chunk(x, 3, 1)[1], layout},
             {"pad", Pad(x, 1, 1, 2), layout}});
      if (layout.is_partial()) continue;
      CH_EXPECT_OK(Backward(Sum(part)));
      Check({{"gradient", x.grad(), layout}});
    }
  });
}

TEST(DropoutRule, KeepsEveryLayout) {
  OnMesh({2, 2}, [](const DeviceMesh& mesh) {
    const ForbidImplicitRedistribution forbid;
    for (const Layout& layout : AllLayouts(mesh.layout(), 2, true)) {
      const Tensor x = Spread(Numbers({3, 5}, 1), mesh, layout);
      Check({{"dropout", Dropout(x, 0.5, 1, 0), layout}});
    }
  });
}

}  // namespace
}  // namespace crosshatch
