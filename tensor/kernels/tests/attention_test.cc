// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "crosshatch/tensor/kernels/kernel_testutil.h"
#include "crosshatch/tensor/kernels/tests/attention_testutil.h"
#include "gtest/gtest.h"

namespace crosshatch::kernel_test {
namespace {

using Lengths = std::pair<int64_t, int64_t>;  // Of queries and keys.
using Heads = std::pair<int64_t, int64_t>;    // Of queries and keys.

// Devices have separate kernels for 16-bit floats.
class AttentionTest : public ::testing::TestWithParam<DType> {
 protected:
  static bool IsSixteenBits() { return SizeOf(GetParam()) == 2; }

  // Runs the case with the dtype of the test.
  static void Test(AttentionCase c) {
    c.dtype = GetParam();
    TestAttention(c);
  }
};

TEST_P(AttentionTest, LengthsAndDims) {
  for (int64_t t : IsSixteenBits()
                       ? std::vector<int64_t>{0, 1, 2, 7, 15, 16, 17, 31, 33,
                                              63, 64, 65, 127}
                       : AllOrFew<int64_t>({1, 2, 3, 7, 13, 31, 64, 65, 127},
                                           {1, 31, 64, 65})) {
    for (int64_t dim : IsSixteenBits()
                           ? std::vector<int64_t>{16}
                           : AllOrFew<int64_t>({1, 2, 16, 20}, {1, 20})) {
      Test({1, t, t, 2, 1, dim});
    }
  }
  Test({1, 200, 200, 1, 1, 64});
  Test({1, 130, 130, 1, 1, 128});
}

TEST_P(AttentionTest, GroupedHeads) {
  for (const auto& [q_heads, kv_heads] :
       AllOrFew<Heads>({{1, 1}, {3, 3}, {4, 2}, {6, 2}, {5, 1}},
                       {{1, 1}, {4, 2}, {5, 1}})) {
    for (bool heads_first : {false, true}) {
      for (bool causal : {false, true}) {
        Test({.batch = 3,
              .q_len = 37,
              .kv_len = 37,
              .q_heads = q_heads,
              .kv_heads = kv_heads,
              .dim = 12,
              .causal = causal,
              .heads_first = heads_first});
      }
    }
  }
}

TEST_P(AttentionTest, DifferentLengths) {
  for (const auto& [q_len, kv_len] : {Lengths{1, 70},
                                      {5, 64},
                                      {70, 3},
                                      {70, 70},
                                      {3, 0},
                                      {0, 3},
                                      {130, 65}}) {
    for (bool causal : {false, true}) {
      Test({.batch = 2,
            .q_len = q_len,
            .kv_len = kv_len,
            .q_heads = 2,
            .kv_heads = 1,
            .dim = 8,
            .causal = causal});
    }
  }
}

TEST_P(AttentionTest, Windows) {
  for (const auto& [q_len, kv_len] : AllOrFew<Lengths>(
           {{1, 70}, {5, 64}, {70, 3}, {70, 70}, {3, 0}, {200, 200}},
           {{5, 64}, {70, 3}, {130, 130}})) {
    for (int64_t window :
         AllOrFew<int64_t>({1, 2, 7, 64, 65, 128, 1000}, {1, 7, 65})) {
      for (bool causal : {false, true}) {
        Test({.batch = 1,
              .q_len = q_len,
              .kv_len = kv_len,
              .q_heads = 2,
              .kv_heads = 1,
              .dim = 8,
              .causal = causal,
              .window = window});
      }
    }
  }
}

TEST_P(AttentionTest, Masks) {
  for (DType mask_dtype : {kBool, kFloat32, GetParam()}) {
    for (uint32_t dims :
         AllOrFew({0u, 1u, 2u, 4u, 8u, 12u, 9u, 15u}, {0u, 8u, 15u})) {
      for (int64_t dim : {6, 80}) {
        Test({.batch = dim > 64 ? 1 : 2,
              .q_len = 35,
              .kv_len = 70,
              .q_heads = 2,
              .kv_heads = 1,
              .dim = dim,
              .causal = (dims == 8u) != (mask_dtype == kBool),
              .mask_dims = dims,
              .mask_dtype = mask_dtype,
              .has_mask = true});
      }
    }
  }
}

// Mask values so low for all keys of a query that they dominate the
// log-sum-exp.
TEST_P(AttentionTest, LowMasks) {
  for (double low :
       AllOrFew({-1e4, -1e9, -3.4028234e38}, {-1e9, -3.4028234e38})) {
    for (bool causal : {false, true}) {
      Test({.batch = 1,
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

TEST_P(AttentionTest, PackedDocuments) {
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
        Test({.batch = 2,
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

TEST_P(AttentionTest, Slopes) {
  for (const auto& [q_len, kv_len, dim] : {std::array<int64_t, 3>{1, 70, 8},
                                           {5, 3, 8},
                                           {70, 70, 8},
                                           {70, 70, 72}}) {
    for (bool causal : {false, true}) {
      Test({.batch = 1,
            .q_len = q_len,
            .kv_len = kv_len,
            .q_heads = 6,
            .kv_heads = 2,
            .dim = dim,
            .causal = causal,
            .slopes = true});
    }
  }
}

// Including a rate that drops nearly everything, so that kept values exceed
// f16's range.
TEST_P(AttentionTest, Dropout) {
  for (int64_t dim : {6, 72}) {
    for (double p : AllOrFew({0.1, 0.5, 0.99999, 1.0}, {0.5, 0.99999})) {
      Test({.batch = 2,
            .q_len = 37,
            .kv_len = 70,
            .q_heads = 4,
            .kv_heads = 2,
            .dim = dim,
            .dropout = p});
    }
  }
}

TEST_P(AttentionTest, AllAtOnce) {
  for (int64_t dim : {17, 128}) {
    for (DType mask_dtype : AllOrFew({kBool, kFloat32}, {kFloat32})) {
      Test({.batch = 2,
            .q_len = 99,
            .kv_len = 99,
            .q_heads = 4,
            .kv_heads = 2,
            .dim = dim,
            .heads_first = true,
            .window = 40,
            .mask_dims = 14,
            .mask_dtype = mask_dtype,
            .has_mask = true,
            .documents = {50, 0, 1, 44},
            .slopes = true,
            .dropout = 0.25});
    }
  }
}

TEST_P(AttentionTest, LargeScoresDoNotOverflow) {
  Test({.batch = 1,
        .q_len = 66,
        .kv_len = 66,
        .q_heads = 1,
        .kv_heads = 1,
        .dim = 16,
        .size = 12});
}

TEST_P(AttentionTest, NoBatchAndNoHeads) {
  Test({0, 5, 5, 2, 1, 8});
  AttentionArgs args;
  args.batch = 2;
  args.q_len = args.kv_len = 5;
  args.head_dim = 8;
  args.dtype = GetParam();
  EXPECT_EQ(Kernels().attention_workspace_bytes(args), 0);
  RunKernel(&KernelTable::attention, args);
}

TEST_P(AttentionTest, ManySharesOfQueryTiles) {
  if (GetParam() == kFloat32) Test({1, 520, 520, 2, 1, 16});
}

// Keys from 64 on are hidden and contain NaN.
TEST_P(AttentionTest, HiddenTilesAreSkipped) {
  constexpr int64_t kLen = 130;
  for (DType mask_dtype : {kBool, kFloat32}) {
    Random random(1);
    const std::vector<int64_t> heads = {1, kLen, 1, 4};
    Operand q(GetParam(), heads), k(GetParam(), heads), v(GetParam(), heads),
        out(GetParam(), heads),
        logsumexp(StatisticsDType(GetParam()), {1, 1, kLen}),
        mask(mask_dtype, {kLen});
    for (Operand* x : {&q, &k, &v}) x->Fill(random, -1, 1);
    const bool of_bools = mask_dtype == kBool;
    Reals shown(64, of_bools ? 1 : 0);
    shown.resize(kLen, of_bools ? 0 : -std::numeric_limits<Real>::infinity());
    mask.Set(shown);
    for (Operand* x : {&k, &v}) {
      Reals poisoned = x->Read();
      std::fill(poisoned.begin() + 64 * 4, poisoned.end(),
                std::numeric_limits<Real>::quiet_NaN());
      x->Set(poisoned);
    }
    AttentionArgs args;
    args.batch = args.q_heads = args.kv_heads = 1;
    args.q_len = args.kv_len = kLen;
    args.head_dim = 4;
    args.dtype = GetParam();
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

INSTANTIATE_TEST_SUITE_P(
    DTypes, AttentionTest,
    ::testing::ValuesIn(AllOrFew({kFloat32, kFloat64, kBFloat16, kFloat16},
                                 {kFloat32, kBFloat16, kFloat16})),
    [](const auto& test) { return std::string(Name(test.param)); });

// The kernels are those of float32.
TEST(AttentionOfFloat64Test, AllAtOnce) {
  for (bool causal : {false, true}) {
    TestAttention({.batch = 2,
                   .q_len = 67,
                   .kv_len = 67,
                   .q_heads = 4,
                   .kv_heads = 2,
                   .dim = 17,
                   .dtype = kFloat64,
                   .causal = causal,
                   .window = 40,
                   .mask_dims = 14,
                   .mask_dtype = kFloat64,
                   .has_mask = true,
                   .documents = {30, 0, 1, 32},
                   .slopes = true,
                   .dropout = 0.25});
  }
}

}  // namespace
}  // namespace crosshatch::kernel_test
