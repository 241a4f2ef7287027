// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/kernels/cuda/attention_geometry.h"

#include <cstdint>

#include "gtest/gtest.h"

namespace crosshatch::internal::attention {
namespace {

TEST(AttentionGeometryTest, EveryRowIsOfOneWarp) {
  for (int64_t rows = 0; rows <= 1100; ++rows) {
    for (const int64_t heads : {0, 1, 3, 1000}) {
      for (const int of_warp : {4, 16}) {
        for (const int most_warps : {1, 4, 8}) {
          const LaunchGeometry geometry =
              GeometryOfTiles(heads, rows, of_warp, most_warps, 2);
          EXPECT_EQ(geometry.blocks_y, 2);
          EXPECT_EQ(geometry.threads_y, 1);
          EXPECT_EQ(geometry.threads % kWarpThreads, 0);
          const int64_t warps = geometry.threads / kWarpThreads;
          EXPECT_GE(warps, 1);
          EXPECT_LE(warps, most_warps);
          EXPECT_EQ(geometry.blocks == 0, heads == 0 || rows == 0);
          if (geometry.blocks == 0) continue;
          EXPECT_EQ(geometry.blocks % heads, 0);
          const int64_t of_head = geometry.blocks / heads;
          EXPECT_GE(of_head * warps * of_warp, rows);
          // No block is without rows, and in a single block no warp is.
          EXPECT_LT((of_head - 1) * warps * of_warp, rows);
          EXPECT_TRUE(of_head > 1 || (warps - 1) * of_warp < rows);
        }
      }
    }
  }
}

TEST(AttentionGeometryDeathTest, ManyBlocks) {
  EXPECT_EQ(GeometryOfTiles((int64_t{1} << 31) - 1, 1, 16, 4, 1).blocks,
            (int64_t{1} << 31) - 1);
  EXPECT_DEATH(GeometryOfTiles(int64_t{1} << 31, 1, 16, 4, 1),
               "attention kernel");
}

TEST(AttentionGeometryTest, ProductsOfSixteenBitsAreMadeByWarps) {
  for (const DType dtype : {kFloat32, kFloat64, kBFloat16, kFloat16}) {
    for (int64_t dim = 0; dim <= 300; ++dim) {
      AttentionArgs args;
      args.dtype = dtype;
      args.head_dim = dim;
      EXPECT_EQ(IsByMma(args),
                (dtype == kBFloat16 || dtype == kFloat16) && dim <= 128)
          << Name(dtype) << " " << dim;
    }
  }
}

}  // namespace
}  // namespace crosshatch::internal::attention
