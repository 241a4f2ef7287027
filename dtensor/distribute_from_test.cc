// SPDX-License-Identifier: Apache-2.0

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/dtensor/dtensor_testutil.h"
#include "crosshatch/dtensor/layout/layout_testutil.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/testing/ranks.h"

namespace crosshatch {
namespace {

int64_t BytesReceived(World& world) {
  int64_t bytes = 0;
  for (const auto& group : world.groups()) {
    for (const auto& count : group->stats().by_kind) bytes += count.bytes;
  }
  return bytes;
}

// Every layout from every rank: the values are the source's, and a rank
// receives only its part.
TEST(DistributeTensorFrom, TakesTheSourcesValues) {
  for (const std::vector<int>& shape :
       {std::vector<int>{1}, std::vector<int>{3}, std::vector<int>{2, 2}}) {
    OnMesh(shape, [](const DeviceMesh& mesh) {
      const int rank = mesh.world().rank();
      int round = 0;
      for (const Shape& sizes :
           {Shape{}, Shape{5}, Shape{0, 2}, Shape{3, 4}, Shape{1, 2, 5}}) {
        const Tensor dense = Numbers(sizes, 1);
        for (const Layout& layout :
             AllLayouts(mesh.layout(), static_cast<int>(sizes.size()), true)) {
          const int source = round++ % mesh.size();
          const int64_t before = BytesReceived(mesh.world());
          const Tensor t = DistributeTensorFrom(
              source,
              rank == source ? dense : Deferred(sizes, kFloat32, "elsewhere"),
              mesh, layout);
          const int64_t received = BytesReceived(mesh.world()) - before;
          const int64_t part = LocalTensor(t).numel() * 4;
          CH_EXPECT_EQ(received, rank == source ? 0 : part)
              << layout.ToString();
          CH_EXPECT_EQ(LayoutOf(t), layout);
          CH_EXPECT_EQ(Differs(t, dense), "")
              << ToString(sizes) << " " << layout.ToString();
        }
      }
    });
  }
}

TEST(DistributeTensorFrom, TakesPlacements) {
  OnMesh({2}, [](const DeviceMesh& mesh) {
    const Tensor dense = Numbers({3, 5}, 1);
    const Tensor t = DistributeTensorFrom(1, dense, mesh, {Shard(1)});
    CH_EXPECT_EQ(LayoutOf(t),
                 Layout::Replicated(mesh.layout(), 2).WithShard(0, 1));
    CH_EXPECT_EQ(Differs(t, dense), "");
  });
}

TEST(DistributeTensorFrom, SendsStridedSourcesAndKeepsLeaves) {
  OnMesh({2}, [](const DeviceMesh& mesh) {
    const Layout rows = Layout::Replicated(mesh.layout(), 2).WithShard(0, 0);
    const Tensor dense = Numbers({3, 5}, 1);
    const Tensor turned = Transpose(Numbers({3, 5}, 1), 0, 1);
    CH_EXPECT_EQ(Differs(DistributeTensorFrom(1, turned, mesh, rows),
                         Transpose(dense, 0, 1)),
                 "");
    const Tensor repeated = Expand(Numbers({1, 5}, 1), {3, 5});
    CH_EXPECT_EQ(
        Differs(DistributeTensorFrom(0, repeated, mesh, rows), repeated), "");
    Tensor leaf = Numbers({3, 5}, 2);
    leaf.set_requires_grad(true);
    const Tensor spread = DistributeTensorFrom(0, leaf, mesh, rows);
    CH_EXPECT_TRUE(spread.requires_grad());
    CH_EXPECT_TRUE(spread.is_leaf());
  });
}

TEST(DistributeTensorFrom, DifferentSizesAreAnErrorOnEveryRank) {
  CH_SKIP_ON(TestEngine::kMpi, "reads what other ranks wrote to its variables");
  std::vector<std::string> found(2);
  const absl::Status status = StatusOfRanks(2, [&](World& world) {
    const auto mesh = InitDeviceMesh(world, {{"a", 2}});
    DistributeTensorFrom(0, Zeros({world.rank() == 0 ? 4 : 6}), *mesh,
                         Layout::Replicated(mesh->layout(), 1).WithShard(0, 0));
    const absl::Status error = world.context().Synchronize();
    found[world.rank()] = std::string(error.message());
    return error;
  });
  EXPECT_FALSE(status.ok());
  EXPECT_NE(found[0].find("DistributeTensorFrom"), std::string::npos)
      << found[0];
  EXPECT_NE(found[1].find("DistributeTensorFrom"), std::string::npos)
      << found[1];
}

}  // namespace
}  // namespace crosshatch
