// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/dtensor.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "crosshatch/dtensor/dtensor_testutil.h"
#include "crosshatch/dtensor/layout/layout_testutil.h"
#include "crosshatch/dtensor/redistribute.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/tensor/rank_context.h"
#include "crosshatch/testing/ranks.h"

namespace crosshatch {
namespace {

TEST(DTensor, DistributeTensorTakesEachRanksPart) {
  OnMeshes({{2}, {3}, {2, 2}}, [](const DeviceMesh& mesh) {
    for (const Shape& sizes :
         {Shape{}, Shape{5}, Shape{0, 2}, Shape{3, 4}, Shape{1, 2, 5}}) {
      const Tensor dense = Numbers(sizes, 1);
      for (const Layout& layout :
           AllLayouts(mesh.layout(), static_cast<int>(sizes.size()), true)) {
        const Tensor t = DistributeTensor(dense, mesh, layout);
        CH_EXPECT_EQ(LayoutOf(t), layout);
        CH_EXPECT_EQ(MeshOf(t), mesh);
        CH_EXPECT_EQ(LocalTensor(t).sizes(),
                     layout.LocalShape(sizes, *mesh.coordinate()));
        // Memory of its own, of the part's size.
        CH_EXPECT_EQ(LocalTensor(t).storage()->bytes(),
                     LocalTensor(t).numel() * 4);
        CH_EXPECT_EQ(Differs(t, dense), "");
      }
    }
  });
}

TEST(DTensor, PlacementsAreEnough) {
  OnMesh({2, 3}, [](const DeviceMesh& mesh) {
    const Tensor dense = Numbers({5, 7}, 1);
    const Layout rows_and_columns = Rows(mesh).WithShard(1, 1);
    const Tensor t = DistributeTensor(dense, mesh, {Shard(0), Shard(-1)});
    CH_EXPECT_EQ(LayoutOf(t), rows_and_columns);
    CH_EXPECT_EQ(Differs(t, dense), "");
    const Tensor moved = Redistribute(t, {Replicate(), Shard(0)});
    CH_EXPECT_EQ(LayoutOf(moved), Whole(mesh, 2).WithShard(1, 0));
    CH_EXPECT_EQ(Differs(moved, dense), "");
    const Tensor local = ToLocal(moved, {Replicate(), Shard(0)});
    CH_EXPECT_EQ(Differs(FromLocal(local, mesh, {Replicate(), Shard(0)},
                                   {Partial(), Shard(0)}),
                         dense),
                 "");
  });
}

TEST(DTensorDeathTest, PlacementsAreOneForEachAxis) {
  ExpectDeathOn({2, 1},
                " in DistributeTensor by placements \\[S\\(0\\)\\] on mesh",
                [](const DeviceMesh& mesh) {
                  DistributeTensor(Numbers({4}, 1), mesh, {Shard(0)});
                });
}

TEST(DTensor, PartsWithoutMemoryStayWithout) {
  OnMesh({2}, [](const DeviceMesh& mesh) {
    Tensor deferred = Deferred({5, 3}, kFloat32, "w");
    deferred.set_requires_grad(true);
    const Tensor t = DistributeTensor(deferred, mesh, Rows(mesh));
    const Tensor local = LocalTensor(t);
    CH_EXPECT_FALSE(local.storage()->attached()) << "storage";
    CH_EXPECT_EQ(local.storage()->owner(), "w");
    CH_EXPECT_EQ(local.size(0), (*mesh.index(0) == 0 ? 3 : 2));
    CH_EXPECT_TRUE(t.requires_grad());
    CH_EXPECT_TRUE(t.is_leaf());
  });
}

TEST(DTensor, FromLocalWorksOutTheSizes) {
  OnMesh({2, 3}, [](const DeviceMesh& mesh) {
    for (const Shape& sizes : {Shape{5, 7}, Shape{2, 1}}) {
      const Tensor dense = Numbers(sizes, 1);
      for (const Layout& layout : AllLayouts(mesh.layout(), 2, true)) {
        const Tensor local = LocalTensor(DistributeTensor(dense, mesh, layout));
        CH_EXPECT_EQ(
            Differs(FromLocal(local, mesh, layout, Whole(mesh, 2)), dense), "");
      }
    }
  });
}

TEST(DTensor, BoxesOfTheRanksMakeUpTheTensor) {
  OnMesh({2, 3}, [](const DeviceMesh& mesh) {
    const Tensor dense = Numbers({5, 4}, 1);
    for (const Layout& layout : AllLayouts(mesh.layout(), 2, false)) {
      const Tensor t = DistributeTensor(dense, mesh, layout);
      const Box box = LocalBoxOf(t);
      CH_EXPECT_EQ(
          Differs(LocalTensor(t),
                  Slice(Slice(dense, 0, box.offsets[0],
                              box.offsets[0] + box.sizes[0]),
                        1, box.offsets[1], box.offsets[1] + box.sizes[1])),
          "");
    }
  });
}

TEST(DTensor, PlainScalarsCountAsReplicated) {
  OnMesh({2}, [](const DeviceMesh& mesh) {
    const Tensor dense = Numbers({5}, 1);
    for (const Layout& layout : AllLayouts(mesh.layout(), 1, true)) {
      const Tensor x = Spread(dense, mesh, layout);
      const Tensor y = Mul(x, Full({}, 3));
      CH_EXPECT_EQ(LayoutOf(y), layout) << layout.ToString();
      CH_EXPECT_EQ(Differs(y, Mul(dense, 3)), "");
      CH_EXPECT_EQ(Differs(Add(Full({}, 2), x), Add(dense, 2)), "");
    }
  });
}

TEST(DTensorDeathTest, RanksOffTheMeshHoldNoTensor) {
  EXPECT_DEATH(RunRanks(3,
                        [](World& world) {
                          const auto mesh = InitDeviceMesh(world, {{"a", 2}});
                          if (mesh->coordinate()) return absl::OkStatus();
                          DistributeTensor(Ones({4}), *mesh, Whole(*mesh, 1));
                          return absl::OkStatus();
                        }),
               "rank 2 is not on mesh\\(a=2\\) and can hold no tensor on it");
}

// Each rank continues with its part; the gradient layouts declare how the local
// gradients form the global one.
TEST(DTensor, GradientsHaveTheDeclaredLayoutAtTheLocalBoundary) {
  OnMesh({2}, [](const DeviceMesh& mesh) {
    const Layout r = Whole(mesh, 1);
    const Layout rows = r.WithShard(0, 0);
    const Layout sums = r.WithPartial(0, ReduceOp::kSum);
    const Tensor dense = Numbers({5}, 1);
    const double mine = *mesh.index(0) + 1;

    // Sharded: the local gradient is the shard's.
    Tensor x = Spread(dense, mesh, rows);
    x.set_requires_grad(true);
    absl::Status status = Backward(Sum(Mul(ToLocal(x, rows), mine)));
    CH_EXPECT_EQ(
        Differs(LocalTensor(x.grad()), Full(LocalTensor(x).sizes(), mine)), "");

    // Replicated, and used differently: the gradients add up.
    Tensor y = Spread(dense, mesh, r);
    y.set_requires_grad(true);
    status.Update(Backward(Sum(Mul(ToLocal(y, sums), mine))));
    CH_EXPECT_EQ(Differs(LocalTensor(y.grad()), Full({5}, 3)), "");

    // Replicated, used alike.
    Tensor z = Spread(dense, mesh, r);
    z.set_requires_grad(true);
    status.Update(Backward(Sum(Mul(FullTensor(z, r), 7.0))));
    CH_EXPECT_EQ(Differs(LocalTensor(z.grad()), Full({5}, 7)), "");

    // Into the graph: the gradient of a summand is that of the sum.
    Tensor local = Full({5}, mine);
    local.set_requires_grad(true);
    const Tensor weight = Replicated(dense, mesh);
    status.Update(
        Backward(Sum(Mul(FromLocal(local, mesh, sums, {5}, r), weight))));
    CH_EXPECT_EQ(Differs(local.grad(), dense), "");

    // A shard that is a leaf of its own.
    Tensor part = LocalTensor(Spread(dense, mesh, rows));
    part = Clone(part);
    part.set_requires_grad(true);
    status.Update(
        Backward(Sum(Mul(FromLocal(part, mesh, rows, {5}, rows), weight))));
    CH_EXPECT_EQ(
        Differs(part.grad(), LocalTensor(DistributeTensor(dense, mesh, rows))),
        "");
    CH_EXPECT_OK(status);
  });
}

TEST(DTensor, LocalBoundariesAreTwiceDifferentiable) {
  OnMesh({2}, [](const DeviceMesh& mesh) {
    const Layout r = Whole(mesh, 1);
    const Layout rows = r.WithShard(0, 0);
    Tensor x = Spread(Numbers({5}, 1), mesh, rows);
    x.set_requires_grad(true);
    const Tensor local = ToLocal(x, rows);
    const Tensor back =
        FromLocal(Mul(local, Mul(local, local)), mesh, rows, {5}, rows);
    const Tensor inputs[] = {x};
    const TensorList first =
        Gradients(Sum(back), inputs, {.create_graph = true}).value();
    const TensorList second = Gradients(Sum(first[0]), inputs).value();
    CH_EXPECT_EQ(Differs(second[0], Mul(Numbers({5}, 1), 6)), "");
  });
}

TEST(DTensor, LocalTensorsShareMemoryAndHaveNoGraph) {
  OnMesh({2}, [](const DeviceMesh& mesh) {
    Tensor x = Spread(Numbers({5}, 1), mesh, Rows(mesh, 1));
    x.set_requires_grad(true);
    const Tensor local = LocalTensor(x);
    CH_EXPECT_FALSE(local.requires_grad());
    FillInPlace(local, 4);
    CH_EXPECT_EQ(Differs(x, Full({5}, 4)), "");
    const Tensor plain = Ones({2});
    CH_EXPECT_TRUE(LocalTensor(plain).SameAs(plain));
  });
}

TEST(DTensor, ViewsShareMemory) {
  OnMesh({2}, [](const DeviceMesh& mesh) {
    NoGrad no_grad;
    const Tensor x = Spread(Numbers({4, 6}, 1), mesh, Rows(mesh));
    FillInPlace(Slice(Transpose(View(x, {4, 2, 3}), 1, 2), 1, 1, 2), 9);
    const Tensor dense = Numbers({4, 6}, 1);
    FillInPlace(Slice(Transpose(View(dense, {4, 2, 3}), 1, 2), 1, 1, 2), 9);
    CH_EXPECT_EQ(Differs(x, dense), "");
  });
}

// (d0 + v) d1 is not d0 d1 + v.
TEST(DTensorDeathTest, AddsNoProductToPendingFactors) {
  const auto into = [](bool accumulate) {
    return [accumulate](const DeviceMesh& mesh) {
      NoGrad no_grad;
      const Tensor a = Numbers({3, 4}, 1);
      const Tensor b = Numbers({4, 2}, 2);
      const Layout factors = Whole(mesh, 2).WithPartial(0, ReduceOp::kProduct);
      const Tensor dst = Spread(Numbers({3, 2}, 3), mesh, factors);
      MatMulInto(dst, Spread(a, mesh, Whole(mesh, 2)),
                 Spread(b, mesh, Whole(mesh, 2)), {}, accumulate);
      CH_EXPECT_EQ(Differs(dst, MatMul(a, b)), "");
    };
  };
  OnMesh({2}, into(/*accumulate=*/false));
  ExpectDeathOn({2}, "matmul_into.*factors are pending",
                into(/*accumulate=*/true));
}

TEST(DTensorDeathTest, RefusesViewsThatNoLayoutExpresses) {
  ExpectDeathOn({2}, "view\\(f32\\[2, 10\\]\\|\\[S\\(1\\)\\]\\): no layout",
                [](const DeviceMesh& mesh) {
                  const Tensor x = Spread(Numbers({2, 10}, 1), mesh,
                                          Whole(mesh, 2).WithShard(0, 1));
                  View(x, {2, 5, 2});
                });
}

TEST(DTensorDeathTest, RefusesPlainTensorsAmongDistributedOnes) {
  ExpectDeathOn({2},
                "add\\(f32\\[4\\]\\|\\[R\\], f32\\[4\\] plain\\): input 1 is a "
                "plain tensor",
                [](const DeviceMesh& mesh) {
                  Add(Spread(Numbers({4}, 1), mesh, Whole(mesh, 1)), Ones({4}));
                });
  ExpectDeathOn({2}, "mul: input 1, a plain tensor .* requires a gradient",
                [](const DeviceMesh& mesh) {
                  Tensor factor = Full({}, 2);
                  factor.set_requires_grad(true);
                  Mul(Spread(Numbers({4}, 1), mesh, Whole(mesh, 1)), factor);
                });
}

// A replicated leaf that a sharded op used a part of: its gradient has to be
// gathered.
TEST(DTensorDeathTest, GradientsThatMustBeRedistributedAreImplicit) {
  ExpectDeathOn(
      {2},
      "backward, gradient for the leaf f32\\[4\\].*: an input would be "
      "redistributed.*all_gather",
      [](const DeviceMesh& mesh) {
        Tensor x = Spread(Numbers({4}, 1), mesh, Whole(mesh, 1));
        x.set_requires_grad(true);
        const ForbidImplicitRedistribution forbid;
        Backward(Sum(Mul(x, Spread(Numbers({4}, 2), mesh, Rows(mesh, 1)))))
            .IgnoreError();
      });
}

// A slice of a replicated tensor is a part of this rank's copy.
TEST(DTensorDeathTest, RefusesToWriteToAPartOfAReplica) {
  for (const auto& to :
       {+[](const Layout& r) { return r.WithShard(0, 0); },
        +[](const Layout& r) { return r.WithPartial(0, ReduceOp::kAvg); }}) {
    ExpectDeathOn({2}, "scale_in_place: .* cannot be written.*Clone it",
                  [to](const DeviceMesh& mesh) {
                    NoGrad no_grad;
                    const Tensor x =
                        Spread(Numbers({4}, 1), mesh, Whole(mesh, 1));
                    MulInPlace(Redistribute(x, to(LayoutOf(x))), 2);
                  });
  }
}

TEST(DTensor, AcceptsWritesToARedistributedTensorWithMemoryOfItsOwn) {
  OnMesh({2}, [](const DeviceMesh& mesh) {
    NoGrad no_grad;
    const Layout r = Whole(mesh, 1);
    const Tensor dense = Numbers({5}, 1);
    const auto expect_written = [&](const Tensor& x, const Tensor& y) {
      MulInPlace(y, 2);
      CH_EXPECT_EQ(Differs(y, Mul(dense, 2)), "");
      CH_EXPECT_EQ(Differs(x, dense), "");
    };
    // Gathered; cloned; cast on the way.
    const Tensor rows = Spread(dense, mesh, r.WithShard(0, 0));
    expect_written(rows, Redistribute(rows, r));
    const Tensor whole = Spread(dense, mesh, r);
    expect_written(whole, Clone(Redistribute(whole, r.WithShard(0, 0))));
    const Tensor wide =
        Redistribute(whole, r.WithShard(0, 0), {.forward_dtype = kFloat64});
    MulInPlace(wide, 2);
    CH_EXPECT_EQ(Differs(whole, dense), "");
    // The same shards under another layout: written on every rank alike.
    const Layout by_five = r.WithDim(0, {.axes = {0}, .unit = 3});
    const Tensor named = Redistribute(rows, by_five);
    FillInPlace(named, 1);
    CH_EXPECT_EQ(Differs(rows, Ones({5})), "");
  });
}

TEST(DTensor, DetachKeepsTheLayoutAndLeavesTheGraph) {
  OnMesh({2}, [](const DeviceMesh& mesh) {
    for (const Layout& layout : AllLayouts(mesh.layout(), 1, true)) {
      Tensor x = Spread(Numbers({5}, 1), mesh, layout);
      x.set_requires_grad(true);
      const Tensor y = Mul(x, 2);
      const Tensor detached = y.Detach();
      CH_EXPECT_EQ(LayoutOf(detached), LayoutOf(y)) << layout.ToString();
      CH_EXPECT_FALSE(detached.requires_grad()) << layout.ToString();
      CH_EXPECT_TRUE(y.requires_grad()) << layout.ToString();
      CH_EXPECT_EQ(Differs(detached, Mul(Numbers({5}, 1), 2)), "");
    }
  });
}

// Each of these would lose a reduction of the gradient, or perform it twice.
TEST(DTensorDeathTest, RefusesImpossibleGradientLayouts) {
  struct Declared {
    ReduceOp tensor;
    std::optional<ReduceOp> grad;
    const char* error;
  };
  const Declared cases[] = {
      {ReduceOp::kSum, ReduceOp::kSum, "each summand of \\[P\\(sum\\)\\] has "},
      {ReduceOp::kAvg, std::nullopt, "pending sums only"},
      {ReduceOp::kMax, std::nullopt, "pending sums only"},
  };
  for (const Declared& c : cases) {
    const auto from_local = [&c](const DeviceMesh& mesh) {
      Tensor local = Ones({4});
      local.set_requires_grad(true);
      const Layout r = Whole(mesh, 1);
      FromLocal(local, mesh, r.WithPartial(0, c.tensor), {4},
                c.grad.has_value() ? r.WithPartial(0, *c.grad) : r);
    };
    ExpectDeathOn({2}, absl::StrCat("from_local: .*", c.error), from_local);
    const auto to_local = [&c](const DeviceMesh& mesh) {
      const Layout r = Whole(mesh, 1);
      Tensor t = Spread(Ones({4}), mesh, r.WithPartial(0, c.tensor));
      t.set_requires_grad(true);
      ToLocal(t, c.grad.has_value() ? r.WithPartial(0, *c.grad) : r);
    };
    ExpectDeathOn({2}, absl::StrCat("to_local: .*", c.error), to_local);
  }
  for (const auto& grad :
       {+[](const Layout& r) { return r.WithShard(0, 0); },
        +[](const Layout& r) { return r.WithPartial(0, ReduceOp::kAvg); }}) {
    ExpectDeathOn({2}, "to_local: .*(must be split|gradients add up)",
                  [grad](const DeviceMesh& mesh) {
                    const Layout r = Whole(mesh, 1);
                    Tensor t = Spread(Ones({4}), mesh, r.WithShard(0, 0));
                    t.set_requires_grad(true);
                    FullTensor(t, grad(r));
                  });
  }
}

TEST(DTensorDeathTest, FromLocalChecksTheLayoutBeforeItExchangesSizes) {
  ExpectDeathOn({2},
                "FromLocal: the layout .. .a. has 2 dims, the tensor 1: give",
                [](const DeviceMesh& mesh) {
                  FromLocal(Ones({4}), mesh, Whole(mesh, 2).WithShard(0, 1),
                            Whole(mesh, 2));
                });
  ExpectDeathOn(
      {2, 2}, "FromLocal: the layout \\[R,S\\(0\\)\\] is on mesh\\(a=2, b=2\\)",
      [](const DeviceMesh& mesh) {
        const auto a = mesh.Slice("a");
        FromLocal(Ones({4}), *a, Whole(mesh, 1).WithShard(1, 0),
                  Whole(mesh, 1));
      });
}

TEST(DTensorDeathTest, RefusesShardsOfAnotherShape) {
  ExpectDeathOn({2}, "the shard of \\[4\\] by \\[S\\(0\\)\\]",
                [](const DeviceMesh& mesh) {
                  MakeDTensor(Ones({3}), mesh, Rows(mesh, 1), {4});
                });
}

TEST(DTensor, RunsDry) {
  const absl::Status status =
      RunFake({.world_size = 4, .rank = 3}, [](World& world) {
        const auto mesh = InitDeviceMesh(world, {{"a", 2}, {"b", 2}});
        EXPECT_TRUE(mesh.ok()) << mesh.status();
        for (const Layout& layout : AllLayouts(mesh->layout(), 2, true)) {
          const Tensor x = DistributeTensor(Zeros({5, 3}), *mesh, layout);
          const Tensor y = MatMul(x, Transpose(x, 0, 1));
          const Tensor whole = FullTensor(y);
          EXPECT_EQ(whole.sizes(), Shape({5, 5}));
          EXPECT_TRUE(whole.device().is_meta());
        }
        return absl::OkStatus();
      });
  EXPECT_TRUE(status.ok()) << status;
}

}  // namespace
}  // namespace crosshatch
