// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/visualize_sharding.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/types/span.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/testing/ranks.h"

namespace crosshatch {
namespace {

const std::vector<MeshAxis> kTwoByTwo = {{"dp", 2}, {"tp", 2}};

std::string Picture(std::vector<MeshAxis> axes, const Shape& shape,
                    absl::Span<const Placement> placements) {
  const MeshLayout mesh = MeshLayout::Create(std::move(axes)).value();
  return "\n" +
         VisualizeSharding(Layout::FromPlacements(
                               mesh, static_cast<int>(shape.size()), placements)
                               .value(),
                           shape);
}

TEST(VisualizeSharding, MatrixInBlocks) {
  EXPECT_EQ(Picture(kTwoByTwo, {5, 6}, {Shard(0), Shard(1)}), R"(
[5, 6] as [S(0),S(1)] on mesh(dp=2, tp=2)
     0:3  3:6
0:3    0    1
3:5    2    3
)");
}

TEST(VisualizeSharding, ReplicasAndSummands) {
  EXPECT_EQ(Picture(kTwoByTwo, {4, 12}, {Shard(1), Replicate()}), R"(
[4, 12] as [S(1),R] on mesh(dp=2, tp=2)
     0:6  6:12
0:4  0,1   2,3
)");
  EXPECT_EQ(Picture(kTwoByTwo, {2, 2}, {Replicate(), Partial()}), R"(
[2, 2] as [R,P(sum)] on mesh(dp=2, tp=2)
         0:2
0:2  0+1,2+3
)");
  EXPECT_EQ(Picture(kTwoByTwo, {2}, {Partial(ReduceOp::kMax), Shard(0)}), R"(
[2] as [P(max),S(0)] on mesh(dp=2, tp=2)
0:1  max(0,2)
1:2  max(1,3)
)");
}

TEST(VisualizeSharding, UnevenStridedAndEmptyParts) {
  EXPECT_EQ(
      Picture({{"fsdp", 2}, {"tp", 2}}, {10}, {StridedShard(0, 2), Shard(0)}),
      R"(
[10] as [_S(0,2),S(0)] on mesh(fsdp=2, tp=2)
 0:3  0
 3:5  2
 5:8  1
8:10  3
)");
  EXPECT_EQ(Picture({{"tp", 4}}, {5, 2}, {Shard(0)}), R"(
[5, 2] as [S(0)] on mesh(tp=4)
     0:2
0:2    0
2:4    1
4:5    2
without elements: 3
)");
  EXPECT_EQ(Picture({{"tp", 2}}, {0, 2}, {Shard(0)}), R"(
[0, 2] as [S(0)] on mesh(tp=2)
without elements: 0,1
)");
}

TEST(VisualizeSharding, OtherNumbersOfDims) {
  EXPECT_EQ(Picture(kTwoByTwo, {}, {Replicate(), Partial()}), R"(
[] as [R,P(sum)] on mesh(dp=2, tp=2)
[]  0+1,2+3
)");
  EXPECT_EQ(Picture(kTwoByTwo, {3, 1, 4}, {Shard(2), Shard(0)}), R"(
[3, 1, 4] as [S(2),S(0)] on mesh(dp=2, tp=2)
[0:2, 0:1, 0:2]  0
[0:2, 0:1, 2:4]  2
[2:3, 0:1, 0:2]  1
[2:3, 0:1, 2:4]  3
)");
}

TEST(VisualizeSharding, NamesWorldRanks) {
  const MeshLayout mesh = *MeshLayout::Create({{"tp", 2}}, {7, 3});
  EXPECT_EQ("\n" + VisualizeSharding(
                       Layout::Replicated(mesh, 1).WithShard(0, 0), {3}),
            R"(
[3] as [S(0)] on mesh(tp=2, ranks=[7,3])
0:2  7
2:3  3
)");
}

TEST(VisualizeSharding, OfATensor) {
  OnMesh({2}, [](const DeviceMesh& mesh) {
    const Layout rows = Layout::Replicated(mesh.layout(), 1).WithShard(0, 0);
    CH_EXPECT_EQ(VisualizeSharding(DistributeTensor(Zeros({3}), mesh, rows)),
                 VisualizeSharding(rows, {3}));
  });
}

}  // namespace
}  // namespace crosshatch
