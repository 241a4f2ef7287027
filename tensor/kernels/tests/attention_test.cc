// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "crosshatch/tensor/kernels/kernel_testutil.h"
#include "crosshatch/tensor/kernels/tests/attention_testutil.h"
#include "gtest/gtest.h"

namespace crosshatch::kernel_test {
namespace {

TEST(AttentionTest, LengthsAndDims) {
  for (DType dtype : {kFloat32, kFloat64}) {
    for (int64_t t : AllOrFew<int64_t>({1, 2, 3, 7, 13, 31, 64, 65, 127},
                                       {1, 31, 64, 65})) {
      for (int64_t dim : AllOrFew<int64_t>({1, 2, 16, 20}, {1, 20})) {
        TestAttention({1, t, t, 2, 1, dim, dtype});
      }
    }
  }
  TestAttention({1, 200, 200, 1, 1, 64});
  TestAttention({2, 130, 130, 2, 2, 128});
}

TEST(AttentionTest, GroupedHeads) {
  for (const auto& [q_heads, kv_heads] : AllOrFew<std::pair<int64_t, int64_t>>(
           {{1, 1}, {3, 3}, {4, 2}, {6, 2}, {5, 1}}, {{3, 3}, {6, 2}})) {
    for (bool heads_first : {false, true}) {
      for (bool causal : {false, true}) {
        TestAttention(
            {3, 37, 37, q_heads, kv_heads, 12, kFloat32, causal, heads_first});
      }
    }
  }
}

TEST(AttentionTest, DifferentLengths) {
  for (const auto& [q_len, kv_len] : {std::pair<int64_t, int64_t>{1, 70},
                                      {5, 64},
                                      {70, 3},
                                      {70, 70},
                                      {3, 0},
                                      {0, 3},
                                      {130, 65}}) {
    for (bool causal : {false, true}) {
      TestAttention({2, q_len, kv_len, 2, 1, 8, kFloat32, causal});
    }
  }
}

TEST(AttentionTest, Windows) {
  for (const auto& [q_len, kv_len] : AllOrFew<std::pair<int64_t, int64_t>>(
           {{1, 70}, {5, 64}, {70, 3}, {70, 70}, {3, 0}, {200, 200}},
           {{5, 64}, {70, 3}, {130, 130}})) {
    for (int64_t window :
         AllOrFew<int64_t>({1, 2, 7, 64, 65, 128, 1000}, {1, 7, 65, 1000})) {
      for (bool causal : {false, true}) {
        TestAttention({1, q_len, kv_len, 2, 1, 8, kFloat32, causal,
                       /*heads_first=*/false, /*size=*/1, window});
      }
    }
  }
}

TEST(AttentionTest, Masks) {
  for (DType dtype : {kBool, kFloat32, kBFloat16}) {
    for (uint32_t dims :
         AllOrFew({0u, 1u, 2u, 4u, 8u, 12u, 9u, 15u}, {0u, 8u, 15u})) {
      for (bool causal : {false, true}) {
        TestAttention({.batch = 2,
                       .q_len = 35,
                       .kv_len = 70,
                       .q_heads = 2,
                       .kv_heads = 1,
                       .dim = 6,
                       .causal = causal,
                       .mask_dims = dims,
                       .mask_dtype = dtype,
                       .has_mask = true});
      }
    }
  }
  TestAttention({.batch = 1,
                 .q_len = 66,
                 .kv_len = 66,
                 .q_heads = 2,
                 .kv_heads = 2,
                 .dim = 4,
                 .dtype = kFloat64,
                 .mask_dims = 12,
                 .mask_dtype = kFloat64,
                 .has_mask = true});
}

// Mask values so low for all keys of a query that they dominate the
// log-sum-exp.
TEST(AttentionTest, LowMasks) {
  for (double low : {-1e4, -1e9, -3.4028234e38}) {
    for (bool causal : {false, true}) {
      TestAttention({.batch = 1,
                     .q_len = 70,
                     .kv_len = 70,
                     .q_heads = 2,
                     .kv_heads = 1,
                     .dim = 4,
                     .causal = causal,
                     .mask_dims = 8,
                     .mask_dtype = kFloat32,
                     .has_mask = true,
                     .low_keys = causal ? 30 : 70,
                     .low = low});
    }
  }
}

TEST(AttentionTest, HiddenTilesAreSkipped) {
  constexpr int64_t kLen = 130;
  for (const auto& [dtype, mask_dtype] :
       {std::pair{kFloat32, kBool}, std::pair{kFloat32, kFloat32},
        std::pair{kBFloat16, kBool}, std::pair{kFloat16, kFloat32}}) {
    Random random(1);
    const std::vector<int64_t> heads = {1, kLen, 1, 4};
    Operand q(dtype, heads), k(dtype, heads), v(dtype, heads),
        out(dtype, heads), logsumexp(kFloat32, {1, 1, kLen}),
        mask(mask_dtype, {kLen});
    for (Operand* x : {&q, &k, &v}) x->Fill(random, -1, 1);
    // Keys from 64 on are hidden and contain NaN.
    Reals shown, poisoned = k.Read();
    for (int64_t j = 0; j < kLen; ++j) {
      const Real hidden =
          mask_dtype == kBool ? 0 : -std::numeric_limits<Real>::infinity();
      const Real seen = mask_dtype == kBool ? 1 : 0;
      shown.push_back(j < 64 ? seen : hidden);
      for (int64_t d = 0; d < 4; ++d) {
        if (j >= 64) {
          poisoned[static_cast<size_t>(4 * j + d)] =
              std::numeric_limits<Real>::quiet_NaN();
        }
      }
    }
    mask.Set(shown);
    k.Set(poisoned);
    v.Set(poisoned);
    AttentionArgs args;
    args.batch = args.q_heads = args.kv_heads = 1;
    args.q_len = args.kv_len = kLen;
    args.head_dim = 4;
    args.dtype = dtype;
    args.q = q.heads();
    args.k = k.heads();
    args.v = v.heads();
    args.out = out.heads_out();
    args.logsumexp = logsumexp.data();
    args.causal = false;
    args.mask = {mask.data(), mask_dtype, {0, 0, 0, 1}};
    Workspace workspace(Kernels().attention_workspace_bytes(args));
    args.workspace = workspace.data();
    RunKernel(&KernelTable::attention, args);
    for (Real x : out.Read()) EXPECT_TRUE(std::isfinite(x));
  }
}

TEST(AttentionTest, PackedDocuments) {
  for (const auto& [length, documents] :
       AllOrFew<std::pair<int64_t, std::vector<int64_t>>>(
           {{9, {4, 5}},
            {7, {1, 0, 2, 3}},
            {70, {70}},
            {70, {0, 0}},
            {70, {3, 60, 0, 7}},
            {200, {64, 64, 64, 8}},
            {200, {130, 1, 50}}},
           {{70, {0, 0}}, {70, {3, 60, 0, 7}}, {145, {75, 1, 50}}})) {
    for (bool causal : {false, true}) {
      for (int64_t window : {0, 5}) {
        TestAttention({.batch = 2,
                       .q_len = length,
                       .kv_len = length,
                       .q_heads = 2,
                       .kv_heads = 1,
                       .dim = 8,
                       .causal = causal,
                       .window = window,
                       .documents = documents});
      }
    }
  }
}

TEST(AttentionTest, Slopes) {
  for (const auto& [q_len, kv_len] :
       {std::pair<int64_t, int64_t>{1, 70}, {5, 3}, {70, 70}}) {
    for (bool causal : {false, true}) {
      TestAttention({.batch = 1,
                     .q_len = q_len,
                     .kv_len = kv_len,
                     .q_heads = 6,
                     .kv_heads = 2,
                     .dim = 8,
                     .causal = causal,
                     .slopes = true});
    }
  }
}

TEST(AttentionTest, Dropout) {
  for (DType dtype : {kFloat32, kFloat64, kBFloat16}) {
    for (double p : {0.1, 0.5, 1.0}) {
      TestAttention({.batch = 2,
                     .q_len = 37,
                     .kv_len = 70,
                     .q_heads = 4,
                     .kv_heads = 2,
                     .dim = 6,
                     .dtype = dtype,
                     .dropout = p});
    }
  }
}

TEST(AttentionTest, AllAtOnce) {
  TestAttention({.batch = 3,
                 .q_len = 131,
                 .kv_len = 131,
                 .q_heads = 6,
                 .kv_heads = 3,
                 .dim = 17,
                 .heads_first = true,
                 .window = 40,
                 .mask_dims = 14,
                 .has_mask = true,
                 .documents = {50, 0, 1, 76},
                 .slopes = true,
                 .dropout = 0.25});
}

TEST(AttentionTest, LargeScoresDoNotOverflow) {
  TestAttention({1, 66, 66, 1, 1, 16, kFloat32, true, false, 12});
}

TEST(AttentionTest, NoBatchAndNoHeads) {
  TestAttention({0, 5, 5, 2, 1, 8});
  AttentionArgs args;
  args.batch = 2;
  args.q_len = args.kv_len = 5;
  args.head_dim = 8;
  EXPECT_EQ(Kernels().attention_workspace_bytes(args), 0);
  RunKernel(&KernelTable::attention, args);
}

TEST(AttentionTest, ManySharesOfQueryTiles) {
  TestAttention({1, 520, 520, 2, 1, 16});
}

}  // namespace
}  // namespace crosshatch::kernel_test
