// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <vector>

#include "absl/strings/str_cat.h"
#include "crosshatch/dtensor/ops/dtensor.h"
#include "crosshatch/dtensor/ops/dtensor_testutil.h"
#include "crosshatch/dtensor/ops/redistribute.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/ops.h"

namespace crosshatch {
namespace {

// That results lie as they can without communication, forward and backward;
// what they hold op_rules_test compares.

Tensor Ids(ShapeView sizes, std::vector<int64_t> ids) {
  return FromValues<int64_t>(sizes, ids);
}

struct Expected {
  const char* what;
  Tensor result;
  Layout layout;
};

void Check(const std::vector<Expected>& all, Complaints& complaints) {
  for (const Expected& e : all) {
    if (LayoutOf(e.result) == e.layout) continue;
    complaints.Add(absl::StrCat(e.what, " lies as ",
                                LayoutOf(e.result).ToString(), ", not ",
                                e.layout.ToString()));
  }
}

TEST(IndexRules, OtherDimsStaySplit) {
  OnMesh({2}, [](const DeviceMesh& mesh, Complaints& complaints) {
    const Layout columns = Layout::Replicated(mesh.layout(), 2).WithShard(0, 1);
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
    Check(all, complaints);
    for (const Expected& e : all) {
      // The sum is of one element: its gradient is replicated.
      const absl::Status status = Backward(Sum(e.result));
      EXPECT_TRUE(status.ok()) << status;
    }
    Check({{"a's gradient", a.grad(), columns},
           {"b's gradient", b.grad(), columns}},
          complaints);
  });
}

TEST(IndexRules, LookUpInASplitDimGivesASum) {
  OnMesh({2}, [](const DeviceMesh& mesh, Complaints& complaints) {
    const Layout whole = Layout::Replicated(mesh.layout(), 2);
    const Layout rows = whole.WithShard(0, 0);
    const Layout sums = whole.WithPartial(0, ReduceOp::kSum);
    const ForbidImplicitRedistribution forbid;
    const Tensor a = Spread(Numbers({5, 3}, 1), mesh, rows);
    const Tensor src = Spread(Numbers({2, 3}, 1), mesh, whole);
    const Tensor index = Ids({2, 3}, {3, 0, 1, 3, 2, 4});
    Check({{"gather", Gather(a, 0, index), sums},
           {"index_select", IndexSelect(a, 0, Ids({2}, {4, 3})), sums},
           // Each rank takes what belongs to its rows.
           {"scatter_add", ScatterAdd(a, 0, index, src), rows},
           {"scatter", Scatter(a, 0, index, src), rows}},
          complaints);
  });
}

// As many places as the index has: the rows of a batch, say.
TEST(IndexRules, PlacesStaySplit) {
  OnMesh({3}, [](const DeviceMesh& mesh, Complaints& complaints) {
    const Layout whole = Layout::Replicated(mesh.layout(), 2);
    const Layout rows = whole.WithShard(0, 0);
    const ForbidImplicitRedistribution forbid;
    const Tensor a = Spread(Numbers({5, 3}, 1), mesh, whole);
    const Tensor index =
        DistributeTensor(Ids({4}, {4, 0, 1, 3}), mesh,
                         Layout::Replicated(mesh.layout(), 1).WithShard(0, 0));
    Check({{"index_select", IndexSelect(a, 0, index), rows}}, complaints);
  });
}

TEST(DropoutRule, KeepsEveryLayout) {
  OnMesh({2, 2}, [](const DeviceMesh& mesh, Complaints& complaints) {
    const ForbidImplicitRedistribution forbid;
    for (const Layout& layout : AllLayouts(mesh.layout(), 2, true)) {
      const Tensor x = Spread(Numbers({3, 5}, 1), mesh, layout);
      Check({{"dropout", Dropout(x, 0.5, 1, 0), layout}}, complaints);
    }
  });
}

}  // namespace
}  // namespace crosshatch
