// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/cross_mesh.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/dtensor/dtensor_testutil.h"
#include "crosshatch/dtensor/layout/layout_testutil.h"
#include "crosshatch/dtensor/redistribute.h"
#include "crosshatch/dtensor/redistribution/cross_mesh_plan.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/in_place.h"
#include "crosshatch/tensor/ops/pointwise.h"
#include "crosshatch/tensor/ops/reduce.h"
#include "crosshatch/tensor/ops/view.h"
#include "crosshatch/tensor/rank_context.h"
#include "crosshatch/testing/ranks.h"

namespace crosshatch {
namespace {

struct MeshOf {
  std::vector<int> shape;
  std::vector<int> ranks;
};

using Body = std::function<void(World& world, const DeviceMesh& before,
                                const DeviceMesh& after)>;

void OnTwoMeshes(int ranks, const MeshOf& before, const MeshOf& after,
                 const Body& body) {
  RunRanks(ranks, [&](World& world) -> absl::Status {
    const auto make = [&world](const MeshOf& of, char name) {
      std::vector<MeshAxis> axes;
      for (int size : of.shape) axes.push_back({std::string(1, name++), size});
      return InitDeviceMesh(world, std::move(axes), of.ranks);
    };
    CH_ASSIGN_OR_RETURN(const DeviceMesh from, make(before, 'a'));
    CH_ASSIGN_OR_RETURN(const DeviceMesh to, make(after, 'p'));
    body(world, from, to);
    return world.context().Synchronize();
  });
}

CrossMeshEnds Ends(const DeviceMesh& from_mesh, const Layout& from,
                   const DeviceMesh& to_mesh, const Layout& to, Shape sizes) {
  return {from_mesh, from, to_mesh, to, std::move(sizes)};
}

CrossMeshTensor Present(const DeviceMesh& mesh, const Layout& layout,
                        const Tensor& dense, bool requires_grad) {
  if (!mesh.coordinate().has_value()) {
    return CrossMeshTensor::Absent(requires_grad);
  }
  Tensor x = Spread(dense, mesh, layout);
  if (requires_grad) x.set_requires_grad(true);
  return CrossMeshTensor(x);
}

int64_t AllToAllBytes(World& world) {
  int64_t bytes = 0;
  for (const auto& group : world.groups()) {
    bytes += group->stats()
                 .by_kind[static_cast<int>(CollectiveKind::kAllToAll)]
                 .bytes;
  }
  return bytes;
}

// Values, bytes and gradients of every pair of layouts.
void CheckAllPairs(int ranks, const MeshOf& before, const MeshOf& after,
                   const std::vector<Shape>& shapes) {
  std::mutex mutex;
  // For each pair: the most that a rank received in an exchange, and the plan's
  // value.
  std::vector<std::pair<int64_t, int64_t>> moved;
  OnTwoMeshes(
      ranks, before, after,
      [&](World& world, const DeviceMesh& from_mesh,
          const DeviceMesh& to_mesh) {
        size_t pair = 0;
        for (const Shape& sizes : shapes) {
          const int ndim = static_cast<int>(sizes.size());
          const Tensor dense = Numbers(sizes, 1);
          const Tensor weight = Numbers(sizes, 2);
          for (const Layout& from :
               AllLayouts(from_mesh.layout(), ndim, /*sums=*/true)) {
            for (const Layout& to :
                 AllLayouts(to_mesh.layout(), ndim, /*sums=*/true)) {
              const CrossMeshTensor x =
                  Present(from_mesh, from, dense, /*requires_grad=*/true);
              const int64_t start = AllToAllBytes(world);
              const CrossMeshTensor y = RedistributeAcross(
                  x, Ends(from_mesh, from, to_mesh, to, sizes));
              const int64_t received = AllToAllBytes(world) - start;
              {
                const auto plan = PlanCrossMesh(from, to, sizes, 4);
                std::lock_guard<std::mutex> lock(mutex);
                if (moved.size() <= pair) moved.resize(pair + 1);
                moved[pair].first = std::max(moved[pair].first, received);
                moved[pair].second = plan->cost.bytes - plan->reduce.cost.bytes;
              }
              ++pair;
              std::string wrong;
              if (y.present()) {
                if (LayoutOf(y.tensor()) != to) wrong = "layout";
                if (wrong.empty()) wrong = Differs(y.tensor(), dense);
              }
              const Tensor loss =
                  y.present()
                      ? Sum(Mul(y.tensor(), Replicated(weight, to_mesh)))
                      : y.tie();
              // A rank on neither mesh does not take part.
              if (x.present() || y.present()) {
                const absl::Status status = Backward(loss);
                if (!status.ok()) wrong = status.ToString();
              }
              if (x.present() && wrong.empty()) {
                wrong = Differs(x.tensor().grad(), weight);
              }
              CH_EXPECT_EQ(wrong, "") << absl::StrCat(
                  ToString(sizes), " ", from.ToString(), " -> ", to.ToString());
            }
          }
        }
      });
  EXPECT_GT(moved.size(), 0u);
  for (const auto& [received, planned] : moved) EXPECT_EQ(received, planned);
}

const std::vector<Shape> kShapes = {{}, {5}, {1}, {0, 3}, {4, 3}};

TEST(CrossMesh, DisjointRanks) {
  CheckAllPairs(5, {{2}, {0, 1}}, {{3}, {4, 2, 3}}, kShapes);
}

TEST(CrossMesh, OverlappingRanks) {
  CheckAllPairs(5, {{3}, {0, 1, 2}}, {{2, 2}, {1, 2, 3, 4}}, {{5}, {4, 3}});
}

TEST(CrossMesh, ASubsetAndARankOnNeither) {
  CheckAllPairs(4, {{3}, {0, 1, 2}}, {{2}, {2, 0}}, kShapes);
}

TEST(CrossMesh, AnotherShapeOfTheSameRanks) {
  CheckAllPairs(4, {{2, 2}, {0, 1, 2, 3}}, {{4}, {3, 1, 2, 0}}, {{5}, {4, 3}});
}

TEST(CrossMesh, MovesOtherDTypesAndUnevenUnits) {
  OnTwoMeshes(
      5, {{2}, {0, 1}}, {{3}, {1, 2, 3}},
      [](World&, const DeviceMesh& from_mesh, const DeviceMesh& to_mesh) {
        const Shape sizes = {11, 3};
        const Layout from = Layout::Replicated(from_mesh.layout(), 2)
                                .WithDim(0, {.axes = {0}, .unit = 4});
        const Layout to = Layout::Replicated(to_mesh.layout(), 2)
                              .WithDim(0, {.axes = {0}, .unit = 3});
        for (DType dtype : {DType::kBFloat16, DType::kInt64}) {
          const Tensor dense = Numbers(sizes, 4, dtype);
          const CrossMeshTensor y = RedistributeAcross(
              Present(from_mesh, from, dense, false), {.from_mesh = from_mesh,
                                                       .from = from,
                                                       .to_mesh = to_mesh,
                                                       .to = to,
                                                       .sizes = sizes,
                                                       .dtype = dtype});
          if (y.present()) CH_EXPECT_EQ(Differs(y.tensor(), dense), "");
        }
      });
}

TEST(CrossMesh, CountsTheCopyOfExpandedTensors) {
  OnTwoMeshes(2, {{1}, {0}}, {{1}, {1}},
              [](World& world, const DeviceMesh& from, const DeviceMesh& to) {
                const Layout here = Layout::Replicated(from.layout(), 2);
                const Layout there = Layout::Replicated(to.layout(), 2);
                // Two rows that share memory, which an exchange must not read
                // twice.
                const Tensor rows = Expand(Numbers({1, 3}, 1), {2, 3});
                CrossMeshTensor x = CrossMeshTensor::Absent(false);
                if (world.rank() == 0) {
                  x = CrossMeshTensor(FromLocal(rows, from, here, here));
                }
                const int64_t before = world.context().copied_bytes();
                const CrossMeshTensor y =
                    RedistributeAcross(x, Ends(from, here, to, there, {2, 3}));
                CH_EXPECT_EQ(world.context().copied_bytes() - before,
                             world.rank() == 0 ? 24 : 0);
                if (y.present()) CH_EXPECT_EQ(Differs(y.tensor(), rows), "");
              });
}

TEST(CrossMesh, AcceptsTheGradientInTheGivenLayout) {
  OnTwoMeshes(
      4, {{2}, {0, 1}}, {{3}, {1, 2, 3}},
      [](World&, const DeviceMesh& from_mesh, const DeviceMesh& to_mesh) {
        const Shape sizes = {4};
        const Tensor dense = Numbers(sizes, 1);
        const Layout from =
            Layout::Replicated(from_mesh.layout(), 1).WithShard(0, 0);
        const Layout to = Layout::Replicated(to_mesh.layout(), 1);
        const Layout sums = to.WithPartial(0, ReduceOp::kSum);
        const CrossMeshTensor x = Present(from_mesh, from, dense, true);
        const CrossMeshTensor y = RedistributeAcross(x, {.from_mesh = from_mesh,
                                                         .from = from,
                                                         .to_mesh = to_mesh,
                                                         .to = to,
                                                         .sizes = sizes,
                                                         .gradient = sums});
        // Each rank adds i + 1 times the tensor to the loss.
        absl::Status status;
        if (y.present()) {
          const Tensor local = ToLocal(y.tensor(), /*grad_layout=*/sums);
          const auto mine = static_cast<float>(*to_mesh.index(0) + 1);
          status = Backward(Sum(Mul(local, mine)));
        } else {
          status = Backward(y.tie());
        }
        CH_EXPECT_OK(status);
        if (x.present())
          CH_EXPECT_EQ(Differs(x.tensor().grad(), Full(sizes, 6)), "");
      });
}

// If all ranks are on both meshes, nothing needs a tie: the sum of cubes.
TEST(CrossMesh, TheGradientOfAGradientIsRight) {
  OnTwoMeshes(
      4, {{2, 2}, {0, 1, 2, 3}}, {{4}, {3, 1, 2, 0}},
      [](World&, const DeviceMesh& from_mesh, const DeviceMesh& to_mesh) {
        const Tensor dense = Numbers({5, 3}, 1);
        for (const Layout& from : AllLayouts(from_mesh.layout(), 2, true)) {
          for (const Layout& to : AllLayouts(to_mesh.layout(), 2, true)) {
            const CrossMeshTensor x = Present(from_mesh, from, dense, true);
            const Tensor y = RedistributeAcross(
                                 x, Ends(from_mesh, from, to_mesh, to, {5, 3}))
                                 .tensor();
            ExpectGradientsThrough(x.tensor(), y, dense);
          }
        }
      });
}

TEST(CrossMesh, AMissingRankIsAnError) {
  const absl::Status status =
      StatusOfRanks(3, [](World& world) -> absl::Status {
        CH_ASSIGN_OR_RETURN(const DeviceMesh from,
                            InitDeviceMesh(world, {{"a", 2}}, {0, 1}));
        CH_ASSIGN_OR_RETURN(const DeviceMesh to,
                            InitDeviceMesh(world, {{"b", 1}}, {2}));
        if (world.rank() == 1) return absl::OkStatus();
        const Layout rows =
            Layout::Replicated(from.layout(), 1).WithShard(0, 0);
        RedistributeAcross(
            Present(from, rows, Numbers({4}, 1), false),
            Ends(from, rows, to, Layout::Replicated(to.layout(), 1), {4}));
        return world.context().Synchronize();
      });
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
}

TEST(CrossMeshDeathTest, RefusesMismatchedLayouts) {
  EXPECT_DEATH(
      OnTwoMeshes(2, {{2}, {0, 1}}, {{2}, {1, 0}},
                  [](World&, const DeviceMesh& from, const DeviceMesh& to) {
                    const Layout r = Layout::Replicated(from.layout(), 1);
                    RedistributeAcross(
                        Present(from, r, Numbers({4}, 1), false),
                        Ends(from, r.WithShard(0, 0), to,
                             Layout::Replicated(to.layout(), 1), {4}));
                  }),
      "redistribute_across: .* does not match the route from");
  EXPECT_DEATH(
      OnTwoMeshes(2, {{2}, {0, 1}}, {{2}, {1, 0}},
                  [](World&, const DeviceMesh& from, const DeviceMesh& to) {
                    const Layout r = Layout::Replicated(from.layout(), 1);
                    const Layout sums = Layout::Replicated(to.layout(), 1)
                                            .WithPartial(0, ReduceOp::kSum);
                    RedistributeAcross(Present(from, r, Numbers({4}, 1), true),
                                       {.from_mesh = from,
                                        .from = r,
                                        .to_mesh = to,
                                        .to = sums,
                                        .sizes = {4},
                                        .gradient = sums});
                  }),
      "RedistributeAcross: each summand of .*P.sum.* has the whole gradient");
  // Nothing is exchanged, so the result is a part of the source.
  EXPECT_DEATH(
      OnTwoMeshes(2, {{2}, {0, 1}}, {{2}, {1, 0}},
                  [](World&, const DeviceMesh& from, const DeviceMesh& to) {
                    NoGrad no_grad;
                    const Layout r = Layout::Replicated(from.layout(), 1);
                    const CrossMeshTensor y = RedistributeAcross(
                        Present(from, r, Numbers({4}, 1), false),
                        Ends(from, r, to,
                             Layout::Replicated(to.layout(), 1).WithShard(0, 0),
                             {4}));
                    MulInPlace(y.tensor(), 2);
                  }),
      "scale_in_place: .* cannot be written");
}

}  // namespace
}  // namespace crosshatch
