// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/verify.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/dtensor/dtensor_testutil.h"
#include "crosshatch/dtensor/layout/layout_testutil.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/testing/ranks.h"

namespace crosshatch {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

// The result of VerifiedFromLocal on each rank of a mesh (a=2, b=2) on which
// only rank 3 has `odd`.
struct Given {
  Shape part = {2, 3};
  Shape sizes = {4, 3};
  DType dtype = kFloat32;
  double value = 1;
  bool turned = false;
};
std::vector<std::string> Said(const Given& odd) {
  std::vector<std::string> said(4);
  RunRanks(4, [&](World& world) {
    const auto mesh = InitDeviceMesh(world, {{"a", 2}, {"b", 2}});
    const Given given = world.rank() == 3 ? odd : Given();
    const Layout layout = Whole(*mesh, 2).WithShard(given.turned ? 1 : 0, 0);
    said[world.rank()] = std::string(
        VerifiedFromLocal(Full(given.part, given.value, given.dtype), *mesh,
                          layout, given.sizes, layout)
            .status()
            .message());
    return absl::OkStatus();
  });
  return said;
}

TEST(VerifiedFromLocal, AgreesOnEveryRank) {
  CH_SKIP_ON(TestEngine::kMpi, "reads what other ranks wrote to its variables");
  EXPECT_THAT(Said({}), Each(""));
  EXPECT_THAT(Said({.part = {1, 3}}),
              Each(HasSubstr("on rank 3: its part is [1, 3], the shard of [4, "
                             "3] by [S(0),R] is [2, 3] there")));
  EXPECT_THAT(Said({.part = {1, 3}, .sizes = {3, 3}}),
              Each(HasSubstr("rank 3 gives f32[3, 3] as {a} {}")));
  EXPECT_THAT(Said({.dtype = kFloat64}), Each(HasSubstr("rank 3 gives f64[")));
  EXPECT_THAT(Said({.turned = true}), Each(HasSubstr("rank 3 gives f32[4, 3] "
                                                     "as {b} {}")));
  EXPECT_THAT(Said({.value = 2}),
              Each(HasSubstr("ranks 2 and 3 replicate a part of [4, 3] by "
                             "[S(0),R] on mesh(a=2, b=2), but hold")));
}

TEST(VerifyReplicas, FindsTheReplicaThatDiffers) {
  OnMesh({2, 3}, [](const DeviceMesh& mesh) {
    for (const Layout& layout : AllLayouts(mesh.layout(), 2, true)) {
      const Tensor t = Spread(Numbers({5, 4}, 1), mesh, layout);
      const absl::Status good = VerifyReplicas(t);
      CH_EXPECT_OK(good);
      // The last rank's part, if another rank replicates it.
      const Tensor local = LocalTensor(t);
      const bool replicated = !layout.IsOwner(MeshCoordinate{1, 2});
      const bool empty = layout.LocalBox({5, 4}, MeshCoordinate{1, 2}).empty();
      if (mesh.world().rank() == 5) FillInPlace(local, 100);
      CH_EXPECT_NE(VerifyReplicas(t).ok(), (replicated && !empty))
          << layout.ToString();
    }
  });
}

TEST(VerifyReplicas, LooksAtStridedPartsAndPassesDryRuns) {
  OnMesh({2}, [](const DeviceMesh& mesh) {
    const Layout r = Whole(mesh, 2);
    // The same elements, laid out differently.
    const Tensor local =
        mesh.world().rank() == 0
            ? Numbers({3, 4}, 1)
            : Transpose(Clone(Transpose(Numbers({3, 4}, 1), 0, 1)), 0, 1);
    const auto t = VerifiedFromLocal(local, mesh, r, {3, 4}, r);
    CH_EXPECT_OK(t);
  });
  const absl::Status status =
      RunFake({.world_size = 4, .rank = 3}, [](World& world) {
        const auto mesh = InitDeviceMesh(world, {{"a", 4}});
        const Layout rows = Rows(*mesh, 1);
        return VerifiedFromLocal(Zeros({1}), *mesh, rows, {7}, rows).status();
      });
  EXPECT_TRUE(status.ok()) << status;
}

}  // namespace
}  // namespace crosshatch
