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
                (dtype == kBFloat16 || dtype == kFloat16) && dim <= 256)
          << Name(dtype) << " " << dim;
    }
  }
}

TEST(AttentionGeometryTest, EveryRowIsOfOneBlock) {
  for (int64_t rows = 0; rows <= 300; ++rows) {
    AttentionArgs args;
    args.batch = 3;
    args.head_dim = 1;
    const LaunchGeometry geometry = MmaGeometry(args, 5, rows, 64);
    EXPECT_EQ(geometry.blocks % 15, 0);
    EXPECT_GE(geometry.blocks / 15 * 64, rows);
    EXPECT_LT((geometry.blocks / 15 - 1) * 64, rows);
    EXPECT_EQ(geometry.threads, 128);
    EXPECT_EQ(geometry.blocks_y, 1);
  }
}

AttentionBackwardArgs PlainArgs() {
  AttentionBackwardArgs backward;
  AttentionArgs& args = backward.forward;
  args.dtype = kBFloat16;
  args.head_dim = 64;
  args.scale = 0.125;
  return backward;
}

TEST(AttentionGeometryTest, PlainProblemsHaveNoRareFeature) {
  EXPECT_TRUE(IsPlain(PlainArgs()));
  for (int64_t dim = 1; dim <= 256; ++dim) {
    AttentionArgs args = PlainArgs().forward;
    args.head_dim = dim;
    EXPECT_EQ(IsPlain(args), dim == 64 || dim == 128 || dim == 256) << dim;
    EXPECT_GE(MmaColsOf(dim), dim);
  }
  for (const double scale : {0.0, -1.0, 0.6}) {
    AttentionArgs args = PlainArgs().forward;
    args.scale = scale;
    EXPECT_FALSE(IsPlain(args)) << scale;
  }
  alignas(16) static const float memory[8] = {};
  AttentionArgs args = PlainArgs().forward;
  args.mask.data = memory;
  EXPECT_FALSE(IsPlain(args));
  args = PlainArgs().forward;
  args.slopes = memory;
  EXPECT_FALSE(IsPlain(args));
  args = PlainArgs().forward;
  args.dropout = 0.5;
  EXPECT_FALSE(IsPlain(args));
  // Every operand has rows of vectors.
  for (int operand = 0; operand < 8; ++operand) {
    for (int what = 0; what < 4; ++what) {
      AttentionBackwardArgs backward = PlainArgs();
      const auto spoil = [&](auto& x) {
        if (what == 0) x.data = const_cast<float*>(memory) + 2;
        if (what == 1) x.batch_stride = 4;
        if (what == 2) x.time_stride = 4;
        if (what == 3) x.head_stride = 4;
      };
      HeadsInput* const inputs[] = {&backward.forward.q, &backward.forward.k,
                                    &backward.forward.v, &backward.grad};
      HeadsOutput* const outputs[] = {&backward.forward.out, &backward.dq,
                                      &backward.dk, &backward.dv};
      if (operand < 4) spoil(*inputs[operand]);
      if (operand >= 4) spoil(*outputs[operand - 4]);
      EXPECT_FALSE(IsPlain(backward)) << operand << " " << what;
      EXPECT_EQ(IsPlain(backward.forward), operand == 3 || operand > 4)
          << operand << " " << what;
    }
  }
}

TEST(AttentionGeometryTest, WorkspaceOfGradients) {
  AttentionArgs args = PlainArgs().forward;
  args.batch = 2;
  args.q_heads = 3;
  args.q_len = 33;
  args.kv_len = 65;
  MmaBackwardLayout layout(args);
  EXPECT_EQ(layout.query_tiles, 2);
  EXPECT_EQ(layout.sums_offset, 832);  // 2 * 3 * 33 floats, in units of 64.
  EXPECT_EQ(layout.counts_offset - layout.sums_offset, 2 * 3 * 2 * 32 * 64 * 4);
  EXPECT_EQ(layout.bytes - layout.counts_offset, 256);  // 2 * 3 * 2 * 4 + 1.
  // The sums of a single block of keys stay in registers.
  args.kv_len = 64;
  layout = MmaBackwardLayout(args);
  EXPECT_EQ(layout.counts_offset, layout.sums_offset);
  const bool mask = true;
  args.mask.data = &mask;
  args.mask.dtype = kFloat32;
  EXPECT_EQ(MmaBackwardLayout(args).sums_offset, 1600);
}

}  // namespace
}  // namespace crosshatch::internal::attention
