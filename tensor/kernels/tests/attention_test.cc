// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/kernels/reference/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>
#include <utility>
#include <vector>

#include "crosshatch/tensor/kernels/kernel_testutil.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using kernel_test::ExpectWithin;
using kernel_test::Gamma;
using kernel_test::Kernels;
using kernel_test::Operand;
using kernel_test::Random;
using kernel_test::Real;
using kernel_test::Reals;
using kernel_test::Workspace;

struct Case {
  int64_t batch, q_len, kv_len, q_heads, kv_heads, dim;
  DType dtype = DType::kFloat32;
  bool causal = true;
  bool heads_first = false;  // Memory order [B, H, T, D].
  double size = 1;           // Of the inputs.
  int64_t window = 0;
  // The dims that a mask has, of [batch, q_heads, q_len, kv_len]: bit 0 the
  // first. It has three of four keys where it is a bool.
  uint32_t mask_dims = 0;
  DType mask_dtype = DType::kBool;
  bool has_mask = false;
  // Lengths of packed documents, one after the other in queries and keys alike;
  // what is left over sees nothing. Every other batch row has them in reverse.
  std::vector<int64_t> documents = {};
  bool slopes = false;
  double dropout = 0;
  // The first keys have this in the mask.
  int64_t low_keys = 0;
  double low = 0;
};

// Key ranges [batch, q_len, 2].
kernel_test::DeviceVector<int32_t> RangesOf(const Case& c) {
  kernel_test::DeviceVector<int32_t> ranges;
  for (int64_t b = 0; b < c.batch; ++b) {
    std::vector<int64_t> lengths = c.documents;
    if (b % 2 == 1) std::reverse(lengths.begin(), lengths.end());
    int64_t begin = 0;
    for (int64_t length : lengths) {
      for (int64_t i = 0; i < length; ++i) {
        ranges.push_back(static_cast<int32_t>(begin));
        ranges.push_back(static_cast<int32_t>(begin + length));
      }
      begin += length;
    }
    for (; begin < c.q_len; ++begin) ranges.insert(ranges.end(), {7, 7});
  }
  return ranges;
}

// A tensor [B, T, H, D] in one of the two memory orders.
class Heads {
 public:
  Heads(const Case& c, int64_t time, int64_t heads)
      : heads_first_(c.heads_first),
        operand_(c.dtype,
                 heads_first_
                     ? std::vector<int64_t>{c.batch, heads, time, c.dim}
                     : std::vector<int64_t>{c.batch, time, heads, c.dim}),
        time_(time),
        heads_(heads) {}
  HeadsInput in() const {
    return heads_first_ ? HeadsInput{operand_.data(), operand_.stride(0),
                                     operand_.stride(2), operand_.stride(1)}
                        : operand_.heads();
  }
  HeadsOutput out() {
    const HeadsInput x = in();
    return {operand_.data(), x.batch_stride, x.time_stride, x.head_stride};
  }
  Reals Read(const Case& c) const {
    return reference::ReadHeads(in(), c.dtype, c.batch, time_, heads_, c.dim);
  }
  Operand& operand() { return operand_; }

 private:
  bool heads_first_;
  Operand operand_;
  int64_t time_, heads_;
};

void TestAttention(const Case& c) {
  Random random(static_cast<uint64_t>(c.q_len * 131 + c.dim));
  Heads q(c, c.q_len, c.q_heads), k(c, c.kv_len, c.kv_heads),
      v(c, c.kv_len, c.kv_heads), out(c, c.q_len, c.q_heads),
      grad(c, c.q_len, c.q_heads), dq(c, c.q_len, c.q_heads),
      dk(c, c.kv_len, c.kv_heads), dv(c, c.kv_len, c.kv_heads);
  for (Heads* x : {&q, &k, &v, &grad}) {
    x->operand().Fill(random, -c.size, c.size);
  }
  Operand logsumexp(StatisticsDType(c.dtype), {c.batch, c.q_heads, c.q_len});

  AttentionBackwardArgs backward;
  AttentionArgs& args = backward.forward;
  args.batch = c.batch;
  args.q_len = c.q_len;
  args.kv_len = c.kv_len;
  args.q_heads = c.q_heads;
  args.kv_heads = c.kv_heads;
  args.head_dim = c.dim;
  args.q = q.in();
  args.k = k.in();
  args.v = v.in();
  args.out = out.out();
  args.logsumexp = logsumexp.data();
  args.dtype = c.dtype;
  args.scale = 1 / std::sqrt(static_cast<double>(c.dim));
  args.causal = c.causal;
  args.window = c.window;
  const std::vector<int64_t> whole = {c.batch, c.q_heads, c.q_len, c.kv_len};
  std::vector<int64_t> mask_sizes = whole;
  for (size_t d = 0; d < 4; ++d) {
    if ((c.mask_dims >> d & 1u) == 0) mask_sizes[d] = 1;
  }
  Operand mask(c.mask_dtype, mask_sizes);
  if (c.has_mask) {
    mask.Fill(random, -2, 2);
    if (c.mask_dtype == DType::kBool) {
      Reals seen;
      for (int64_t i = 0; i < mask.numel(); ++i) {
        seen.push_back(random.Below(4) > 0 ? 1 : 0);
      }
      mask.Set(seen);
    }
    if (c.low_keys > 0) {
      Reals values = mask.Read();
      std::fill(values.begin(), values.begin() + c.low_keys, Real(c.low));
      mask.Set(values);
    }
    args.mask = mask.in();
    for (size_t d = 0; d < 4; ++d) {
      if (mask_sizes[d] == 1) args.mask.strides[d] = 0;
    }
  }
  const kernel_test::DeviceVector<int32_t> ranges = RangesOf(c);
  if (!c.documents.empty()) {
    args.key_ranges = ranges.data();
    args.key_ranges_batch_stride = 2 * c.q_len;
  }
  kernel_test::DeviceVector<float> slopes;
  for (int64_t h = 0; h < c.q_heads; ++h) {
    slopes.push_back(std::ldexp(1.0f, -static_cast<int>(h) - 1));
  }
  if (c.slopes) args.slopes = slopes.data();
  args.dropout = c.dropout;
  args.dropout_key = 0x0123456789ABCDEFu;
  args.dropout_stream = 77;
  args.first_row = 3;
  args.first_head = 2;
  args.total_heads = c.q_heads + 5;
  backward.grad = grad.in();
  backward.dq = dq.out();
  backward.dk = dk.out();
  backward.dv = dv.out();
  Workspace forward_workspace(Kernels().attention_workspace_bytes(args));
  Workspace backward_workspace(
      Kernels().attention_backward_workspace_bytes(backward));
  args.workspace = forward_workspace.data();
  backward.workspace = backward_workspace.data();

  std::ostringstream what;
  what << "attention B" << c.batch << " Tq" << c.q_len << " Tk" << c.kv_len
       << " Hq" << c.q_heads << " Hkv" << c.kv_heads << " D" << c.dim << " "
       << Name(c.dtype) << (c.causal ? " causal" : " full") << " window "
       << c.window << " mask " << (c.has_mask ? Name(c.mask_dtype) : "none")
       << " of " << c.mask_dims << " documents " << c.documents.size()
       << (c.slopes ? " slopes" : "") << " dropout " << c.dropout;
  kernel_test::RunAllWays(
      {&out.operand(), &logsumexp, &dq.operand(), &dk.operand(), &dv.operand()},
      [&](KernelContext& context) {
        Kernels().attention(args, context);
        Kernels().attention_backward(backward, context);
      },
      what.str());

  const reference::Attention expected = reference::AttentionForward(args);
  const reference::AttentionGradients gradients =
      reference::AttentionBackward(backward);
  // A score is off by gamma(D + 3) * its magnitude, so a probability by this
  // relative error: of the score and of the maximum's place, the exponential,
  // a rescaling for each tile of keys (64), the sum over keys.
  const int64_t tiles = c.kv_len / 64 + 1;
  const Real score_error = Gamma(c.dtype, c.dim + 6) * expected.score_magnitude;
  const Real relative =
      2 * score_error + Gamma(c.dtype, 40 + 20 * tiles + c.kv_len);
  Reals bounds = expected.out_magnitudes;
  for (Real& bound : bounds) bound *= 2 * relative;
  ExpectWithin(out.Read(c), expected.out, bounds, c.dtype, what.str() + " out");
  bounds.clear();
  for (Real value : expected.logsumexp) {
    bounds.push_back(
        std::isinf(value) ? 0 : relative + Gamma(c.dtype, 4) * std::abs(value));
  }
  ExpectWithin(logsumexp.Read(), expected.logsumexp, bounds, logsumexp.dtype(),
               what.str() + " logsumexp");

  // The gradient of a score is off by a few times that, by the rounding of the
  // output that delta is computed from, and by the sums over D and queries.
  const Real rounding = c.dtype == kernel_test::ComputeDType(c.dtype)
                            ? 0
                            : reference::UnitRoundoff(c.dtype);
  const Real backward_error =
      6 * relative + 2 * rounding +
      Gamma(c.dtype, 4 * c.dim + c.q_len * (c.q_heads / c.kv_heads) + 16);
  // Probabilities below the smallest normal number count as 0; each is a factor
  // of at most this many terms of this size.
  const Real flushed =
      std::ldexp(Real(1), c.dtype == DType::kFloat64 ? -1021 : -125) *
      static_cast<Real>((c.q_len + c.kv_len) * c.q_heads * c.dim) * 4 *
      std::pow(std::max(Real(1), Real(c.size)), 3);
  const auto check = [&](const Heads& actual, const Reals& values,
                         const Reals& magnitudes, const char* name) {
    Reals limits = magnitudes;
    for (Real& limit : limits) limit = limit * backward_error + flushed;
    ExpectWithin(actual.Read(c), values, limits, c.dtype, what.str() + name);
  };
  check(dq, gradients.dq, gradients.dq_magnitudes, " dq");
  check(dk, gradients.dk, gradients.dk_magnitudes, " dk");
  check(dv, gradients.dv, gradients.dv_magnitudes, " dv");
}

TEST(AttentionTest, LengthsAndDims) {
  for (DType dtype : {DType::kFloat32, DType::kFloat64}) {
    for (int64_t t : {1, 2, 3, 7, 13, 31, 64, 65, 127}) {
      for (int64_t dim : {1, 2, 16, 20}) {
        TestAttention({1, t, t, 2, 1, dim, dtype});
      }
    }
  }
  TestAttention({1, 200, 200, 1, 1, 64});
  TestAttention({2, 130, 130, 2, 2, 128});
}

TEST(AttentionTest, GroupedHeads) {
  for (const auto& [q_heads, kv_heads] :
       {std::pair<int64_t, int64_t>{1, 1}, {3, 3}, {4, 2}, {6, 2}, {5, 1}}) {
    for (bool heads_first : {false, true}) {
      for (bool causal : {false, true}) {
        TestAttention({3, 37, 37, q_heads, kv_heads, 12, DType::kFloat32,
                       causal, heads_first});
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
      TestAttention({2, q_len, kv_len, 2, 1, 8, DType::kFloat32, causal});
    }
  }
}

TEST(AttentionTest, Windows) {
  for (const auto& [q_len, kv_len] : {std::pair<int64_t, int64_t>{1, 70},
                                      {5, 64},
                                      {70, 3},
                                      {70, 70},
                                      {3, 0},
                                      {200, 200}}) {
    for (int64_t window : {1, 2, 7, 64, 65, 128, 1000}) {
      for (bool causal : {false, true}) {
        TestAttention({1, q_len, kv_len, 2, 1, 8, DType::kFloat32, causal,
                       /*heads_first=*/false, /*size=*/1, window});
      }
    }
  }
}

TEST(AttentionTest, Masks) {
  for (DType dtype : {DType::kBool, DType::kFloat32, DType::kBFloat16}) {
    for (uint32_t dims : {0u, 1u, 2u, 4u, 8u, 12u, 9u, 15u}) {
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
                 .dtype = DType::kFloat64,
                 .mask_dims = 12,
                 .mask_dtype = DType::kFloat64,
                 .has_mask = true});
}

// Values of a mask that are so low for all keys of a query that nothing else
// could be told from their log-sum-exp.
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
                     .mask_dtype = DType::kFloat32,
                     .has_mask = true,
                     .low_keys = causal ? 30 : 70,
                     .low = low});
    }
  }
}

// Of tiles that the mask hides as a whole nothing is read.
TEST(AttentionTest, HiddenTilesAreSkipped) {
  constexpr int64_t kLen = 130;
  for (DType mask_dtype : {DType::kBool, DType::kFloat32}) {
    Random random(1);
    const std::vector<int64_t> heads = {1, kLen, 1, 4};
    Operand q(DType::kFloat32, heads), k(DType::kFloat32, heads),
        v(DType::kFloat32, heads), out(DType::kFloat32, heads),
        logsumexp(DType::kFloat32, {1, 1, kLen}), mask(mask_dtype, {kLen});
    for (Operand* x : {&q, &k, &v}) x->Fill(random, -1, 1);
    // Keys 64 on are hidden, and hold what would spoil everything.
    Reals shown, poisoned = k.Read();
    for (int64_t j = 0; j < kLen; ++j) {
      const Real hidden = mask_dtype == DType::kBool
                              ? 0
                              : -std::numeric_limits<Real>::infinity();
      const Real seen = mask_dtype == DType::kBool ? 1 : 0;
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
    args.q = q.heads();
    args.k = k.heads();
    args.v = v.heads();
    args.out = out.heads_out();
    args.logsumexp = logsumexp.data();
    args.causal = false;
    args.mask = {mask.data(), mask_dtype, {0, 0, 0, 1}};
    Workspace workspace(Kernels().attention_workspace_bytes(args));
    args.workspace = workspace.data();
    kernel_test::Run(
        [&](KernelContext& context) { Kernels().attention(args, context); });
    for (Real x : out.Read()) EXPECT_TRUE(std::isfinite(x));
  }
}

TEST(AttentionTest, PackedDocuments) {
  for (const auto& [length, documents] :
       {std::pair<int64_t, std::vector<int64_t>>{9, {4, 5}},
        {7, {1, 0, 2, 3}},
        {70, {70}},
        {70, {0, 0}},
        {70, {3, 60, 0, 7}},
        {200, {64, 64, 64, 8}},
        {200, {130, 1, 50}}}) {
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
  for (DType dtype : {DType::kFloat32, DType::kFloat64, DType::kBFloat16}) {
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

TEST(AttentionTest, SixteenBitFloats) {
  for (DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    TestAttention({2, 70, 70, 4, 2, 16, dtype});
    TestAttention({1, 13, 13, 1, 1, 6, dtype, false, true});
  }
}

TEST(AttentionTest, LargeScoresDoNotOverflow) {
  TestAttention({1, 66, 66, 1, 1, 16, DType::kFloat32, true, false, 12});
}

TEST(AttentionTest, NoBatchAndNoHeads) {
  TestAttention({0, 5, 5, 2, 1, 8});
  AttentionArgs args;
  args.batch = 2;
  args.q_len = args.kv_len = 5;
  args.head_dim = 8;
  EXPECT_EQ(Kernels().attention_workspace_bytes(args), 0);
  KernelContext& context = kernel_test::Context();
  Kernels().attention(args, context);
}

TEST(AttentionTest, ManySharesOfQueryTiles) {
  TestAttention({1, 520, 520, 2, 1, 16});
}

}  // namespace
}  // namespace crosshatch
