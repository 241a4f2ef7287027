// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/creation.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/dtensor/dtensor_testutil.h"
#include "crosshatch/dtensor/layout/layout_testutil.h"
#include "crosshatch/dtensor/redistribute.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/testing/ranks.h"

namespace crosshatch {
namespace {

struct Maker {
  const char* name;
  std::function<Tensor(ShapeView)> plain;
  std::function<Tensor(ShapeView, const DeviceMesh&, const Layout&)> spread;
};

// \param make takes sizes, and a mesh and a layout if there are any.
template <typename Make>
Maker MakerOf(const char* name, Make make) {
  return {name, [=](ShapeView s) { return make(s); },
          [=](ShapeView s, const DeviceMesh& m, const Layout& l) {
            return make(s, m, l);
          }};
}

std::vector<Maker> Makers(DType dtype) {
  const RandomDraw draw = {.seed = 4, .name = "noise", .step = 2};
  return {
      MakerOf("Zeros",
              [=](auto s, auto&... on) { return Zeros(s, on..., dtype); }),
      MakerOf("Ones",
              [=](auto s, auto&... on) { return Ones(s, on..., dtype); }),
      MakerOf("Full",
              [=](auto s, auto&... on) { return Full(s, 3, on..., dtype); }),
      MakerOf("Rand",
              [=](auto s, auto&... on) { return Rand(s, draw, on..., dtype); }),
      MakerOf(
          "Randn",
          [=](auto s, auto&... on) { return Randn(s, draw, on..., dtype); }),
  };
}

const std::vector<std::vector<int>> kMeshes = {{1}, {3}, {4}, {2, 2}};

TEST(DTensorCreation, EqualsPlainCreation) {
  CH_SKIP_ON(TestEngine::kMpi, "reads what other ranks wrote to its variables");
  for (const std::vector<int>& shape : kMeshes) {
    OnMesh(shape, [](const DeviceMesh& mesh) {
      for (const DType dtype : {kFloat32, kBFloat16, kFloat64}) {
        for (const Maker& maker : Makers(dtype)) {
          for (const Shape& sizes : {Shape{5, 7}, Shape{2, 1}, Shape{0, 3}}) {
            const Tensor dense = maker.plain(sizes);
            for (const Layout& layout : AllLayouts(mesh.layout(), 2, true)) {
              const Tensor t = maker.spread(sizes, mesh, layout);
              std::string wrong = Differs(t, dense);
              if (LayoutOf(t) != layout) wrong = "layout";
              if (LocalTensor(t).storage()->bytes() !=
                  LocalTensor(t).numel() * SizeOf(dtype)) {
                wrong = "memory beyond the part";
              }
              CH_EXPECT_EQ(wrong, "") << maker.name << " " << layout.ToString();
            }
          }
        }
      }
    });
  }
}

TEST(DTensorCreation, TakesPlacements) {
  OnMesh({2, 2}, [](const DeviceMesh& mesh) {
    const RandomDraw draw = {.seed = 4, .name = "noise"};
    const Layout both = Whole(mesh, 2).WithShard(0, 1).WithShard(1, 0);
    const Layout one = Whole(mesh, 1).WithShard(1, 0);
    const std::vector<Placement> placements = {Shard(1), Shard(0)};
    for (const auto& [by_placements, by_layout] :
         {std::pair(Full({5, 3}, 2, mesh, placements),
                    Full({5, 3}, 2, mesh, both)),
          {Ones({5, 3}, mesh, placements, kFloat64),
           Ones({5, 3}, mesh, both, kFloat64)},
          {Randn({5, 3}, draw, mesh, {Shard(1), Shard(0)}),
           Randn({5, 3}, draw, mesh, both)},
          {Arange(5, mesh, {Replicate(), Shard(0)}), Arange(5, mesh, one)}}) {
      CH_EXPECT_EQ(LayoutOf(by_placements), LayoutOf(by_layout));
      CH_EXPECT_EQ(by_placements.dtype(), by_layout.dtype());
      CH_EXPECT_EQ(Differs(by_placements, FullTensor(by_layout)), "");
    }
    CH_EXPECT_EQ(LayoutOf(Empty({5, 3}, mesh, placements)), both);
  });
}

TEST(DTensorCreation, CountsAcrossRanks) {
  for (const std::vector<int>& shape : kMeshes) {
    OnMesh(shape, [](const DeviceMesh& mesh) {
      for (const DType dtype : {kInt64, kFloat32, kBFloat16}) {
        for (const int64_t n : {0, 1, 7, 600}) {
          for (const Layout& layout : AllLayouts(mesh.layout(), 1, true)) {
            CH_EXPECT_EQ(
                Differs(Arange(n, mesh, layout, dtype), Arange(n, dtype)), "");
          }
        }
      }
    });
  }
}

TEST(DTensorCreation, LinspaceIsThatOfOneDevice) {
  const std::vector<double> plain =
      Linspace(-0.1, 0.7, 9, kFloat64).ToVector<double>();
  EXPECT_EQ(plain.front(), -0.1);
  EXPECT_EQ(plain.back(), 0.7);
  for (size_t i = 0; i < plain.size(); ++i) {
    // Two products and a sum, each rounded once, of numbers below 1.
    EXPECT_NEAR(plain[i], -0.1 + 0.1 * static_cast<double>(i), 4e-16);
  }
  EXPECT_EQ(Linspace(3, 5, 1).ToVector<float>(), std::vector<float>{3});
  EXPECT_EQ(Linspace(3, 5, 0).sizes(), Shape{0});
  OnMesh({2, 2}, [](const DeviceMesh& mesh) {
    for (int64_t n : {0, 1, 2, 7}) {
      for (DType dtype : {kFloat32, kFloat64, kBFloat16}) {
        for (const Layout& layout : AllLayouts(mesh.layout(), 1, true)) {
          CH_EXPECT_EQ(Differs(Linspace(-0.1, 0.7, n, mesh, layout, dtype),
                               Linspace(-0.1, 0.7, n, dtype)),
                       "");
        }
      }
    }
  });
}

TEST(DTensorCreation, CommunicatesNothing) {
  OnMesh({2, 2}, [](const DeviceMesh& mesh) {
    for (const Layout& layout : AllLayouts(mesh.layout(), 2, true)) {
      Randn({5, 3}, {.seed = 1}, mesh, layout);
    }
    CH_EXPECT_EQ(GetRedistributeCounts().cost.launches, 0);
  });
}

// The mask and the values are those of one device, on every mesh and layout,
// also for strided parts; backward drops the same elements.
TEST(DTensorDropout, IsThatOfOneDevice) {
  const auto run = [](Tensor x) {
    x.set_requires_grad(true);
    const Tensor y = Dropout(Transpose(x, 0, 1), 0.25, 11, 5);
    const absl::Status status = Backward(Sum(y));
    EXPECT_TRUE(status.ok()) << status;
    return TensorList{y, x.grad()};
  };
  const Tensor dense = Fractions({7, 6}, 1);
  const TensorList expected = run(dense.Detach());
  const std::vector<float> values = expected[0].ToVector<float>();
  const std::vector<float> grads = expected[1].ToVector<float>();
  for (const std::vector<int>& shape : kMeshes) {
    OnMesh(shape, [&](const DeviceMesh& mesh) {
      for (const Layout& layout : AllLayouts(mesh.layout(), 2, false)) {
        const TensorList actual =
            run(Spread(Fractions({7, 6}, 1), mesh, layout));
        CH_EXPECT_EQ(Differs(actual[0], FromValues<float>({6, 7}, values)), "");
        CH_EXPECT_EQ(Differs(actual[1], FromValues<float>({7, 6}, grads)), "");
      }
    });
  }
}

// Each step has other attributes; the cache of plans must not grow with them.
TEST(DTensorDropout, DrawsAnewEachStep) {
  OnMesh({2}, [](const DeviceMesh& mesh) {
    const Tensor x = Ones({64}, mesh, Rows(mesh, 1));
    for (uint64_t step : {0, 1, 2}) {
      CH_EXPECT_EQ(
          Differs(Dropout(x, 0.5, 3, step), Dropout(Ones({64}), 0.5, 3, step)),
          "");
    }
  });
}

TEST(DTensorCreationDeathTest, RefusesLayoutsThatDoNotFit) {
  ExpectDeathOn(
      {2}, "Full: the layout .. .. has 2 dims, the tensor 1: give",
      [](const DeviceMesh& mesh) { Zeros({4}, mesh, Whole(mesh, 2)); });
}

TEST(DTensorCreationDeathTest, RefusesANegativeSize) {
  ExpectDeathOn({2}, "Full of sizes \\[-1\\]",
                [](const DeviceMesh& mesh) { Zeros({-1}, mesh, {Shard(0)}); });
}

}  // namespace
}  // namespace crosshatch
