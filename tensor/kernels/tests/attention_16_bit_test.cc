// SPDX-License-Identifier: Apache-2.0

/// \file
/// Attention of 16-bit floats, for which devices have separate kernels: what
/// attention_test does not test for all dtypes.

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "crosshatch/tensor/kernels/kernel_testutil.h"
#include "crosshatch/tensor/kernels/tests/attention_testutil.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::kernel_test {
namespace {

class AttentionOfSixteenBitsTest : public ::testing::TestWithParam<DType> {
 protected:
  // Fills in the parameters that all cases share.
  AttentionCase Of(AttentionCase c) const {
    c.dtype = GetParam();
    return c;
  }
};

// Dims that do and do not fill vectors and tiles, in both memory orders.
// Adjacent heads may be aligned to vectors or not.
TEST_P(AttentionOfSixteenBitsTest, Dims) {
  for (int64_t dim : {1,  2,   7,   8,   15,  17,  20,  24,  63,  64, 65,
                      72, 100, 127, 128, 129, 136, 200, 255, 256, 257}) {
    for (bool heads_first : {false, true}) {
      TestAttention(Of({.batch = 1,
                        .q_len = 19,
                        .kv_len = 19,
                        .q_heads = 2,
                        .kv_heads = 2,
                        .dim = dim,
                        .heads_first = heads_first}));
    }
  }
  TestAttention(Of({1, 130, 130, 1, 1, 128}));
}

TEST_P(AttentionOfSixteenBitsTest, NoBatchAndNoHeads) {
  TestAttention(Of({0, 5, 5, 2, 1, 8}));
  AttentionArgs args;
  args.batch = 2;
  args.q_len = args.kv_len = 5;
  args.head_dim = 8;
  args.dtype = GetParam();
  RunKernel(&KernelTable::attention, args);
}

// Without rare features and with heads that fill tiles, other kernels run. Keys
// are in several blocks, which add to dq in order.
TEST_P(AttentionOfSixteenBitsTest, PlainProblems) {
  for (int64_t dim : {64, 128, 256}) {
    const std::pair<int64_t, int64_t> short_keys = {37, 70};
    for (const auto& [q_len, kv_len] : AllOrFew<std::pair<int64_t, int64_t>>(
             {{1, 1},
              {1, 131},
              {67, 67},
              {131, 131},
              {5, 0},
              {0, 5},
              {101, 37},
              short_keys},
             {dim > 64 ? short_keys : std::pair<int64_t, int64_t>{131, 131}})) {
      for (bool causal : {false, true}) {
        for (bool heads_first : AllOrFew({false, true}, {causal})) {
          TestAttention(Of({.batch = 1 + q_len % 2,
                            .q_len = q_len,
                            .kv_len = kv_len,
                            .q_heads = 3,
                            .kv_heads = 1,
                            .dim = dim,
                            .causal = causal,
                            .heads_first = heads_first}));
        }
      }
    }
  }
}

TEST_P(AttentionOfSixteenBitsTest, WindowsAndDocumentsOfPlainProblems) {
  for (int64_t dim : AllOrFew<int64_t>({64, 128, 256}, {64})) {
    for (int64_t window : AllOrFew<int64_t>({1, 33, 64, 100}, {33})) {
      for (bool causal : {false, true}) {
        TestAttention(Of({.batch = 1,
                          .q_len = 150,
                          .kv_len = 150,
                          .q_heads = 2,
                          .kv_heads = 1,
                          .dim = dim,
                          .causal = causal,
                          .window = window}));
        TestAttention(Of({.batch = 1,
                          .q_len = 193,
                          .kv_len = 193,
                          .q_heads = 1,
                          .kv_heads = 1,
                          .dim = dim,
                          .causal = causal,
                          .documents = {100, 0, 31, window}}));
      }
    }
  }
}

// Documents that begin and end next to the bounds of tiles.
TEST_P(AttentionOfSixteenBitsTest, BoundsNextToThoseOfTiles) {
  for (int64_t dim : AllOrFew<int64_t>({64, 128, 256}, {64})) {
    for (const auto& documents :
         {std::vector<int64_t>{63, 64, 4}, {1, 64, 66}}) {
      TestAttention(Of({.batch = 1,
                        .q_len = 131,
                        .kv_len = 131,
                        .q_heads = 1,
                        .kv_heads = 1,
                        .dim = dim,
                        .causal = false,
                        .documents = documents}));
    }
  }
}

TEST_P(AttentionOfSixteenBitsTest, RareFeaturesOfFullHeads) {
  for (int64_t dim : {64, 128, 256}) {
    for (const bool has_mask : {false, true}) {
      TestAttention(Of({.batch = 1,
                        .q_len = 35,
                        .kv_len = 70,
                        .q_heads = 2,
                        .kv_heads = 1,
                        .dim = dim,
                        .mask_dims = 14,
                        .mask_dtype = kBool,
                        .has_mask = has_mask,
                        .documents = {30},
                        .slopes = !has_mask,
                        .dropout = has_mask ? 0.25 : 0}));
    }
  }
}

// Operands and results of a call, forward and backward.
struct Call {
  static constexpr int64_t kLen = 37;
  static constexpr int64_t kHeads = 2;
  static constexpr int64_t kDim = 24;

  Call(DType dtype, int64_t batch)
      : dtype(dtype),
        batch(batch),
        q(dtype, {batch, kLen, kHeads, kDim}),
        k(dtype, {batch, kLen, 1, kDim}),
        v(dtype, {batch, kLen, 1, kDim}),
        grad(dtype, {batch, kLen, kHeads, kDim}),
        out(dtype, {batch, kLen, kHeads, kDim}),
        logsumexp(kFloat32, {batch, kHeads, kLen}),
        dq(dtype, {batch, kLen, kHeads, kDim}),
        dk(dtype, {batch, kLen, 1, kDim}),
        dv(dtype, {batch, kLen, 1, kDim}) {}

  void Run(double scale, double dropout, int64_t first_row) {
    AttentionBackwardArgs backward;
    AttentionArgs& args = backward.forward;
    args.batch = batch;
    args.q_len = args.kv_len = kLen;
    args.q_heads = kHeads;
    args.kv_heads = 1;
    args.head_dim = dim;
    args.q = q.heads();
    args.k = k.heads();
    args.v = v.heads();
    args.out = out.heads_out();
    args.logsumexp = logsumexp.data();
    args.dtype = dtype;
    args.scale = scale;
    args.dropout = dropout;
    args.dropout_key = 5;
    args.first_row = first_row;
    args.total_heads = kHeads;
    backward.grad = grad.heads();
    backward.dq = dq.heads_out();
    backward.dk = dk.heads_out();
    backward.dv = dv.heads_out();
    Workspace forward_workspace(Kernels().attention_workspace_bytes(args));
    Workspace backward_workspace(
        Kernels().attention_backward_workspace_bytes(backward));
    args.workspace = forward_workspace.data();
    backward.workspace = backward_workspace.data();
    kernel_test::Run([&](KernelContext& context) {
      Kernels().attention(args, context);
      Kernels().attention_backward(backward, context);
    });
  }

  DType dtype;
  int64_t batch;
  int64_t dim = kDim;  // Of the columns, those that are used.
  Operand q, k, v, grad, out, logsumexp, dq, dk, dv;
};

TEST_P(AttentionOfSixteenBitsTest, ARowOfABatchIsTheSameAlone) {
  Random random(3);
  Call whole(GetParam(), 3);
  for (Operand* x : {&whole.q, &whole.k, &whole.v, &whole.grad}) {
    x->Fill(random, -1, 1);
  }
  whole.Run(0.25, 0.25, 7);
  for (size_t row = 0; row < 3; ++row) {
    Call alone(GetParam(), 1);
    const auto part = [row](const Operand& of) {
      const Reals values = of.Read();
      const auto size = static_cast<std::ptrdiff_t>(values.size() / 3);
      const auto from = values.begin() + size * static_cast<int>(row);
      return Reals(from, from + size);
    };
    alone.q.Set(part(whole.q));
    alone.k.Set(part(whole.k));
    alone.v.Set(part(whole.v));
    alone.grad.Set(part(whole.grad));
    alone.Run(0.25, 0.25, 7 + static_cast<int64_t>(row));
    EXPECT_EQ(alone.out.Read(), part(whole.out)) << row;
    EXPECT_EQ(alone.logsumexp.Read(), part(whole.logsumexp)) << row;
    EXPECT_EQ(alone.dq.Read(), part(whole.dq)) << row;
    EXPECT_EQ(alone.dk.Read(), part(whole.dk)) << row;
    EXPECT_EQ(alone.dv.Read(), part(whole.dv)) << row;
  }
}

TEST_P(AttentionOfSixteenBitsTest, NothingButInfinitelyLowScoresGivesZeros) {
  Call call(GetParam(), 1);
  const auto all = [](Operand& x, double value) {
    x.Set(Reals(static_cast<size_t>(x.numel()), value));
  };
  all(call.q, 6e4);
  all(call.k, -6e4);
  all(call.v, 1);
  all(call.grad, 1);
  call.Run(1e30, 0, 0);
  for (const Operand* x : {&call.out, &call.dq, &call.dk, &call.dv}) {
    EXPECT_THAT(x->Read(), ::testing::Each(0));
  }
  EXPECT_THAT(call.logsumexp.Read(),
              ::testing::Each(-std::numeric_limits<Real>::infinity()));
}

// Rows that begin at pairs, and end within one.
TEST_P(AttentionOfSixteenBitsTest, WritesNothingBetweenHeads) {
  Call call(GetParam(), 1);
  Random random(3);
  for (Operand* x : {&call.q, &call.k, &call.v, &call.grad}) {
    x->Fill(random, -1, 1);
  }
  Operand* const outputs[] = {&call.out, &call.dq, &call.dk, &call.dv};
  for (Operand* x : outputs) {
    x->Set(Reals(static_cast<size_t>(x->numel()), 7));
  }
  call.dim = Call::kDim - 1;
  call.Run(0.25, 0, 0);
  for (Operand* x : outputs) {
    const Reals values = x->Read();
    for (size_t i = 0; i < values.size(); ++i) {
      if (i % Call::kDim == Call::kDim - 1) {
        EXPECT_EQ(values[i], 7) << i;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, AttentionOfSixteenBitsTest,
                         ::testing::Values(kBFloat16, kFloat16),
                         [](const auto& test) {
                           return std::string(Name(test.param));
                         });

}  // namespace
}  // namespace crosshatch::kernel_test
