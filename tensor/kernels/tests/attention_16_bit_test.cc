// SPDX-License-Identifier: Apache-2.0

/// \file
/// Attention of 16-bit floats, for which devices have kernels of their own.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "crosshatch/tensor/kernels/kernel_testutil.h"
#include "crosshatch/tensor/kernels/tests/attention_testutil.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using kernel_test::AttentionCase;
using kernel_test::Kernels;
using kernel_test::TestAttention;

class AttentionOfSixteenBitsTest : public ::testing::TestWithParam<DType> {
 protected:
  // What cases differ from.
  AttentionCase Of(AttentionCase c) const {
    c.dtype = GetParam();
    return c;
  }
};

TEST_P(AttentionOfSixteenBitsTest, Lengths) {
  for (int64_t t : {0, 1, 2, 7, 15, 16, 17, 31, 33, 63, 64, 65, 127}) {
    TestAttention(Of({1, t, t, 2, 1, 16}));
  }
  TestAttention(Of({2, 70, 70, 4, 2, 16}));
  TestAttention(Of({1, 200, 200, 1, 1, 64}));
}

// Those that fill vectors and tiles, and those that do not, in both orders of
// memory: heads beside one another lie on vectors, or do not.
TEST_P(AttentionOfSixteenBitsTest, Dims) {
  for (int64_t dim : {1, 2, 7, 8, 15, 17, 20, 24, 63, 64, 65, 72, 100, 127, 128,
                      129, 136, 200}) {
    for (bool heads_first : {false, true}) {
      TestAttention(Of({.batch = 1,
                        .q_len = 37,
                        .kv_len = 37,
                        .q_heads = 2,
                        .kv_heads = 2,
                        .dim = dim,
                        .heads_first = heads_first}));
    }
  }
  TestAttention(Of({1, 130, 130, 1, 1, 128}));
}

TEST_P(AttentionOfSixteenBitsTest, GroupedHeads) {
  for (const auto& [q_heads, kv_heads] :
       {std::pair<int64_t, int64_t>{1, 1}, {4, 2}, {5, 1}}) {
    for (bool causal : {false, true}) {
      TestAttention(Of({.batch = 3,
                        .q_len = 37,
                        .kv_len = 37,
                        .q_heads = q_heads,
                        .kv_heads = kv_heads,
                        .dim = 12,
                        .causal = causal}));
    }
  }
}

TEST_P(AttentionOfSixteenBitsTest, DifferentLengths) {
  for (const auto& [q_len, kv_len] : {std::pair<int64_t, int64_t>{1, 70},
                                      {5, 64},
                                      {70, 3},
                                      {3, 0},
                                      {0, 3},
                                      {130, 65}}) {
    for (bool causal : {false, true}) {
      TestAttention(Of({.batch = 2,
                        .q_len = q_len,
                        .kv_len = kv_len,
                        .q_heads = 2,
                        .kv_heads = 1,
                        .dim = 8,
                        .causal = causal}));
    }
  }
}

TEST_P(AttentionOfSixteenBitsTest, Windows) {
  for (const auto& [q_len, kv_len] :
       {std::pair<int64_t, int64_t>{5, 64}, {70, 3}, {200, 200}}) {
    for (int64_t window : {1, 7, 64, 65}) {
      for (bool causal : {false, true}) {
        TestAttention(Of({.batch = 1,
                          .q_len = q_len,
                          .kv_len = kv_len,
                          .q_heads = 2,
                          .kv_heads = 1,
                          .dim = 8,
                          .causal = causal,
                          .window = window}));
      }
    }
  }
}

TEST_P(AttentionOfSixteenBitsTest, Masks) {
  for (DType mask_dtype : {DType::kBool, DType::kFloat32, GetParam()}) {
    for (uint32_t dims : {0u, 8u, 12u, 15u}) {
      for (int64_t dim : {6, 80}) {
        TestAttention(Of({.batch = 2,
                          .q_len = 35,
                          .kv_len = 70,
                          .q_heads = 2,
                          .kv_heads = 1,
                          .dim = dim,
                          .causal = dims == 8u,
                          .mask_dims = dims,
                          .mask_dtype = mask_dtype,
                          .has_mask = true}));
      }
    }
  }
  for (bool causal : {false, true}) {
    TestAttention(Of({.batch = 1,
                      .q_len = 70,
                      .kv_len = 70,
                      .q_heads = 2,
                      .kv_heads = 1,
                      .dim = 4,
                      .causal = causal,
                      .mask_dims = 8,
                      .mask_dtype = DType::kFloat32,
                      .has_mask = true,
                      .low_keys = causal ? 30 : 70,
                      .low = -1e9}));
  }
}

TEST_P(AttentionOfSixteenBitsTest, PackedDocuments) {
  for (const auto& [length, documents] :
       {std::pair<int64_t, std::vector<int64_t>>{7, {1, 0, 2, 3}},
        {70, {0, 0}},
        {70, {3, 60, 0, 7}},
        {200, {130, 1, 50}}}) {
    for (int64_t window : {0, 5}) {
      TestAttention(Of({.batch = 2,
                        .q_len = length,
                        .kv_len = length,
                        .q_heads = 2,
                        .kv_heads = 1,
                        .dim = 8,
                        .causal = window == 0,
                        .window = window,
                        .documents = documents}));
    }
  }
}

TEST_P(AttentionOfSixteenBitsTest, Slopes) {
  for (int64_t dim : {8, 72}) {
    for (bool causal : {false, true}) {
      TestAttention(Of({.batch = 1,
                        .q_len = 70,
                        .kv_len = 70,
                        .q_heads = 6,
                        .kv_heads = 2,
                        .dim = dim,
                        .causal = causal,
                        .slopes = true}));
    }
  }
}

// Nearly all dropped, as well: what is kept grows beyond what f16 has.
TEST_P(AttentionOfSixteenBitsTest, Dropout) {
  for (int64_t dim : {6, 72}) {
    for (double p : {0.1, 0.5, 0.99999, 1.0}) {
      TestAttention(Of({.batch = 2,
                        .q_len = 37,
                        .kv_len = 70,
                        .q_heads = 4,
                        .kv_heads = 2,
                        .dim = dim,
                        .dropout = p}));
    }
  }
}

TEST_P(AttentionOfSixteenBitsTest, AllAtOnce) {
  for (int64_t dim : {17, 128}) {
    for (DType mask_dtype : {DType::kBool, DType::kFloat32}) {
      TestAttention(Of({.batch = 2,
                        .q_len = 131,
                        .kv_len = 131,
                        .q_heads = 4,
                        .kv_heads = 2,
                        .dim = dim,
                        .heads_first = true,
                        .window = 40,
                        .mask_dims = 14,
                        .mask_dtype = mask_dtype,
                        .has_mask = true,
                        .documents = {50, 0, 1, 76},
                        .slopes = true,
                        .dropout = 0.25}));
    }
  }
}

TEST_P(AttentionOfSixteenBitsTest, LargeScoresDoNotOverflow) {
  TestAttention(Of({.batch = 1,
                    .q_len = 66,
                    .kv_len = 66,
                    .q_heads = 1,
                    .kv_heads = 1,
                    .dim = 16,
                    .size = 12}));
}

TEST_P(AttentionOfSixteenBitsTest, NoBatchAndNoHeads) {
  TestAttention(Of({0, 5, 5, 2, 1, 8}));
  AttentionArgs args;
  args.batch = 2;
  args.q_len = args.kv_len = 5;
  args.head_dim = 8;
  args.dtype = GetParam();
  kernel_test::Run(
      [&](KernelContext& context) { Kernels().attention(args, context); });
}

INSTANTIATE_TEST_SUITE_P(DTypes, AttentionOfSixteenBitsTest,
                         ::testing::Values(kBFloat16, kFloat16),
                         [](const auto& test) {
                           return std::string(Name(test.param));
                         });

}  // namespace
}  // namespace crosshatch
