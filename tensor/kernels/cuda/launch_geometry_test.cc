// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/kernels/cuda/launch_geometry.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "crosshatch/tensor/kernels/cuda/reduce_config.h"
#include "gtest/gtest.h"

namespace crosshatch::internal {
namespace {

std::vector<int64_t> Sizes() {
  std::vector<int64_t> sizes;
  for (int64_t i = 0; i <= 1100; ++i) sizes.push_back(i);
  for (int power = 11; power <= 45; ++power) {
    for (int64_t off : {-1, 0, 1}) sizes.push_back((int64_t{1} << power) + off);
  }
  return sizes;
}

void ExpectLaunchable(const LaunchGeometry& geometry) {
  EXPECT_GE(geometry.blocks, 0);
  EXPECT_LT(geometry.blocks, int64_t{1} << 31);
  EXPECT_GE(geometry.threads, 1);
  EXPECT_EQ(geometry.threads % kWarpThreads, 0);
  EXPECT_LE(geometry.threads * geometry.threads_y, kMaxBlockThreads);
}

TEST(LaunchGeometryTest, ItemsGetAThreadEachOrTurns) {
  int64_t before = 0;
  for (int64_t items : Sizes()) {
    const LaunchGeometry geometry = GeometryOfItems(items);
    ExpectLaunchable(geometry);
    EXPECT_EQ(geometry.blocks == 0, items == 0) << items;
    const int64_t threads = geometry.blocks * geometry.threads;
    // No block is empty.
    EXPECT_LT(threads - geometry.threads, items > 0 ? items : 1) << items;
    EXPECT_TRUE(threads >= items || geometry.blocks == 2048) << items;
    EXPECT_GE(threads, before) << items;
    before = threads;
  }
}

TEST(LaunchGeometryTest, RowsGetABlockEach) {
  for (int64_t rows : Sizes()) {
    for (int64_t items : {0, 1, 31, 32, 33, 500, 100000}) {
      const LaunchGeometry geometry = GeometryOfRows(rows, items);
      ExpectLaunchable(geometry);
      EXPECT_EQ(geometry.blocks,
                rows < (int64_t{1} << 31) ? rows : (int64_t{1} << 31) - 1);
      EXPECT_EQ(geometry.threads & (geometry.threads - 1), 0);
      EXPECT_TRUE(geometry.threads >= items || geometry.threads == 512);
      EXPECT_TRUE(geometry.threads == 32 || geometry.threads < 2 * items);
    }
  }
}

TEST(LaunchGeometryTest, ThreadsOfARowTakeTheirVectorsOrTurns) {
  for (int64_t cols : Sizes()) {
    for (int width : {1, 4, 8}) {
      for (int vectors : {1, 4}) {
        const LaunchGeometry geometry =
            GeometryOfVectors(7, cols, width, vectors);
        ExpectLaunchable(geometry);
        EXPECT_EQ(geometry.blocks, 7);
        EXPECT_TRUE(int64_t{geometry.threads} * width * vectors >= cols ||
                    geometry.threads == 512);
      }
    }
  }
}

TEST(LaunchGeometryTest, PiecesHoldAllRows) {
  for (int64_t rows : Sizes()) {
    for (int64_t most : {1, 2, 7, 256}) {
      for (const int64_t least : {1, 3, 16}) {
        const RowPieces pieces = PiecesOfRows(rows, most, least);
        EXPECT_LE(pieces.pieces, most);
        EXPECT_GE(pieces.pieces * pieces.rows_per_piece, rows);
        EXPECT_GE(pieces.rows_per_piece, std::min(rows, least));
        if (rows == 0) continue;
        // No piece is empty.
        EXPECT_LT((pieces.pieces - 1) * pieces.rows_per_piece, rows);
      }
    }
  }
}

// Returns the plan for a matrix of `outputs` x `terms` elements, or for its
// transpose.
ReduceConfig ConfigOf(int64_t outputs, int64_t terms, bool terms_inside,
                      int64_t most_partials) {
  ReduceArgs args;
  args.kind = ReduceKind::kSum;
  args.shape.ndim = 2;
  args.shape.sizes[terms_inside ? 0 : 1] = outputs;
  args.shape.sizes[terms_inside ? 1 : 0] = terms;
  args.reduced = terms_inside ? 2 : 1;
  args.in = {nullptr, kFloat32, {args.shape.sizes[1], 1}};
  args.out = {nullptr, kFloat32, {1, 1}};
  return MakeReduceConfig(args, most_partials);
}

TEST(ReduceConfigTest, EveryTermIsOfOnePiece) {
  std::vector<int64_t> sizes = {0, 1, 2, 3, 31, 32, 33, 127, 1000, 4096, 4097};
  for (int power = 14; power <= 31; power += 3) {
    sizes.push_back((int64_t{1} << power) + 1);
  }
  for (const int64_t outputs : sizes) {
    for (const int64_t terms : sizes) {
      for (const bool terms_inside : {false, true}) {
        for (const int64_t most_partials : {0, 100, 1 << 17}) {
          const ReduceConfig config =
              ConfigOf(outputs, terms, terms_inside, most_partials);
          ExpectLaunchable(config.geometry);
          EXPECT_EQ(config.outputs, outputs);
          EXPECT_EQ(config.terms, terms);
          EXPECT_EQ(config.geometry.blocks == 0, outputs == 0);
          if (outputs == 0) continue;
          EXPECT_EQ(config.geometry.threads & (config.geometry.threads - 1), 0);
          EXPECT_EQ(config.geometry.threads % config.lanes, 0);
          EXPECT_EQ(config.terms_per_piece % config.width, 0);
          EXPECT_GE(config.pieces, 1);
          EXPECT_GE(config.pieces * config.terms_per_piece, terms);
          EXPECT_LT((config.pieces - 1) * config.terms_per_piece,
                    std::max<int64_t>(terms, 1));
          EXPECT_TRUE(config.pieces == 1 ||
                      config.pieces * outputs <= most_partials)
              << outputs << " outputs of " << terms
              << " terms: " << config.pieces << " pieces";
        }
      }
    }
  }
}

TEST(LaunchGeometryTest, VectorsWantAlignedRows) {
  alignas(16) const char data[64] = {};
  EXPECT_EQ(VectorWidthOf(kFloat32), 4);
  EXPECT_EQ(VectorWidthOf(kBFloat16), 8);
  EXPECT_EQ(VectorWidthOf(kFloat64), 2);
  EXPECT_EQ(VectorWidthOf(kBool), 16);
  EXPECT_TRUE(IsVectorAligned(data, kFloat32, 12, 4));
  EXPECT_FALSE(IsVectorAligned(data, kFloat32, 13, 4));
  EXPECT_FALSE(IsVectorAligned(data + 4, kFloat32, 12, 4));
  EXPECT_TRUE(IsVectorAligned(data + 4, kFloat32, 13, 1));
  EXPECT_TRUE(IsVectorAligned(data + 8, kBFloat16, 4, 4));
  EXPECT_TRUE(IsVectorAligned(data, kFloat32, -8, 4));
}

}  // namespace
}  // namespace crosshatch::internal
