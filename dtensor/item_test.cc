// SPDX-License-Identifier: Apache-2.0

#include <gtest/gtest.h>

#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/dtensor/dtensor_testutil.h"
#include "crosshatch/dtensor/layout/layout_testutil.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/tensor/rank_context.h"
#include "crosshatch/testing/ranks.h"

namespace crosshatch {
namespace {

template <typename T>
void ExpectValue(const absl::StatusOr<T>& value, T expected) {
  CH_EXPECT_OK(value);
  if (value.ok()) CH_EXPECT_EQ(*value, expected);
}

TEST(Item, GivesTheValueOfEveryLayoutToEveryRank) {
  for (const std::vector<int>& shape :
       {std::vector<int>{1}, std::vector<int>{3}, std::vector<int>{2, 2}}) {
    OnMesh(shape, [](const DeviceMesh& mesh) {
      for (const Shape& sizes : {Shape{}, Shape{1}, Shape{1, 1}}) {
        const Tensor dense = Full(sizes, -2.5);
        for (const Layout& layout :
             AllLayouts(mesh.layout(), static_cast<int>(sizes.size()), true)) {
          Tensor t = Spread(dense, mesh, layout);
          t.set_requires_grad(true);
          ExpectValue(Item(t), -2.5);
          ExpectValue(Item<float>(t), -2.5f);
        }
      }
    });
  }
}

TEST(Item, PerformsPendingReductions) {
  OnMesh({3}, [](const DeviceMesh& mesh) {
    const double mine = *mesh.index(0) + 2;  // 2, 3, 4
    const auto of = [&](ReduceOp op) {
      const Layout layout =
          Layout::Replicated(mesh.layout(), 0).WithPartial(0, op);
      return Item(MakeDTensor(Full({}, mine), mesh, layout, {}));
    };
    ExpectValue(of(ReduceOp::kSum), 9.0);
    ExpectValue(of(ReduceOp::kAvg), 3.0);
    ExpectValue(of(ReduceOp::kProduct), 24.0);
    ExpectValue(of(ReduceOp::kMax), 4.0);
    ExpectValue(of(ReduceOp::kMin), 2.0);
  });
}

TEST(Item, TakesPlainTensorsAndKeepsIntegersExact) {
  OnMesh({2}, [](const DeviceMesh& mesh) {
    ExpectValue(Item(Full({1, 1}, 7)), 7.0);
    ExpectValue(Item(Full({}, 1, kBool)), 1.0);
    const int64_t large = (int64_t{1} << 53) + 1;
    const Tensor count = FromValues<int64_t>({1}, std::vector<int64_t>{large});
    ExpectValue(Item<int64_t>(count), large);
    ExpectValue(
        Item<int64_t>(DistributeTensor(
            count, mesh, Layout::Replicated(mesh.layout(), 1).WithShard(0, 0))),
        large);
  });
}

TEST(Item, GivesTheErrorOfAPoisonedRank) {
  StatusOfRanks(2, [](World& world) -> absl::Status {
    world.context().Poison(absl::UnavailableError("a peer is lost"));
    for (const absl::Status& status :
         {Item(Full({}, 7)).status(), Item<float>(Full({}, 7)).status()}) {
      CH_EXPECT_TRUE(absl::StrContains(status.message(), "a peer is lost"))
          << status;
    }
    return absl::OkStatus();
  }).IgnoreError();
}

TEST(Item, IsAnErrorInADryRun) {
  const absl::Status status =
      RunFake({.world_size = 2, .rank = 1}, [](World& world) {
        const auto mesh = InitDeviceMesh(world, {{"a", 2}});
        EXPECT_TRUE(mesh.ok()) << mesh.status();
        const Tensor x = DistributeTensor(
            Zeros({1}), *mesh,
            Layout::Replicated(mesh->layout(), 1).WithShard(0, 0));
        EXPECT_EQ(Item(x).status().code(),
                  absl::StatusCode::kFailedPrecondition);
        return absl::OkStatus();
      });
  EXPECT_TRUE(status.ok()) << status;
}

TEST(ItemDeathTest, ChecksTheNumberOfElementsAndTheDType) {
  EXPECT_DEATH(
      OnMesh({2},
             [](const DeviceMesh& mesh) {
               // One element on each rank.
               Item(
                   Spread(Ones({2}), mesh,
                          Layout::Replicated(mesh.layout(), 1).WithShard(0, 0)))
                   .IgnoreError();
             }),
      "Item of f32\\[2\\]\\|\\[S\\(0\\)\\].*has not one element");
  EXPECT_DEATH(
      OnMesh({2}, [](const DeviceMesh&) { Item(Ones({0})).IgnoreError(); }),
      "Item of f32\\[0\\].*has not one element");
  EXPECT_DEATH(
      OnMesh({2},
             [](const DeviceMesh&) { Item<double>(Ones({})).IgnoreError(); }),
      "Item<f64> of f32\\[\\]");
}

}  // namespace
}  // namespace crosshatch
