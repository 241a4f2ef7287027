// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/kernels/tests/attention_testutil.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <sstream>
#include <utility>

#include "crosshatch/tensor/kernels/kernel_testutil.h"
#include "crosshatch/tensor/kernels/reference/reference.h"
#include "gtest/gtest.h"

namespace crosshatch::kernel_test {
namespace {

// Key ranges [batch, q_len, 2].
DeviceVector<int32_t> RangesOf(const AttentionCase& c) {
  DeviceVector<int32_t> ranges;
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
  Heads(const AttentionCase& c, int64_t time, int64_t heads)
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
  Reals Read(const AttentionCase& c) const {
    return reference::ReadHeads(in(), c.dtype, c.batch, time_, heads_, c.dim);
  }
  Operand& operand() { return operand_; }

 private:
  bool heads_first_;
  Operand operand_;
  int64_t time_, heads_;
};

}  // namespace

void TestAttention(const AttentionCase& c) {
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
    if (c.mask_dtype == kBool) {
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
    // Queries have different largest elements.
    if (c.mask_dtype != DType::kBool) {
      Reals values = mask.Read();
      for (size_t i = 0; i < values.size(); ++i) {
        const auto query =
            static_cast<int64_t>(i) / mask_sizes[3] % mask_sizes[2];
        values[i] += static_cast<Real>(4 * (query % 3));
      }
      mask.Set(values);
    }
    args.mask = mask.in();
    for (size_t d = 0; d < 4; ++d) {
      if (mask_sizes[d] == 1) args.mask.strides[d] = 0;
    }
  }
  const DeviceVector<int32_t> ranges = RangesOf(c);
  if (!c.documents.empty()) {
    args.key_ranges = ranges.data();
    args.key_ranges_batch_stride = 2 * c.q_len;
  }
  DeviceVector<float> slopes;
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
  RunAllWays(
      {&out.operand(), &logsumexp, &dq.operand(), &dk.operand(), &dv.operand()},
      [&](KernelContext& context) {
        Kernels().attention(args, context);
        Kernels().attention_backward(backward, context);
      },
      what.str());

  const reference::Attention expected = reference::AttentionForward(args);
  const reference::AttentionGradients gradients =
      reference::AttentionBackward(backward);
  // A kernel may round the operands of products, probabilities and gradients of
  // scores, to 16 bits: by a factor of 1 + rounding or, below the normal
  // numbers, by `lost`.
  const Real rounding =
      c.dtype == ComputeDType(c.dtype) ? 0 : reference::UnitRoundoff(c.dtype);
  const Real lost = rounding == 0 ? 0 : reference::Smallest(c.dtype) / 2;
  // Returns the error of a sum of n products, in roundings. Tensor cores may
  // add 16 products at a time to the accumulator, and truncate each at the last
  // bit of the largest.
  const auto of_sum = [&](int64_t n) {
    return rounding == 0 ? n : 2 * (n + n / 16 + 1);
  };
  // A score has an error of gamma(D + 3) * its magnitude. The relative error of
  // a probability includes that of the score, of the maximum, the exponential,
  // one rescaling per tile of 32 keys, and the sum over keys.
  const int64_t tiles = c.kv_len / 32 + 1;
  const Real score_error =
      Gamma(c.dtype, of_sum(c.dim) + 6) * expected.score_magnitude;
  const Real relative =
      2 * score_error + Gamma(c.dtype, 40 + 20 * tiles + of_sum(c.kv_len));
  const Real kept = c.dropout < 1 ? 1 / (1 - Real(c.dropout)) : Real(0);
  const Real lost_of_out =
      lost * static_cast<Real>(c.kv_len) * Real(c.size) * kept;
  Reals bounds = expected.out_magnitudes;
  for (Real& bound : bounds) {
    bound = bound * ((1 + 2 * relative) * (1 + rounding) - 1) + lost_of_out;
  }
  ExpectWithin(out.Read(c), expected.out, bounds, c.dtype, what.str() + " out");
  bounds.clear();
  for (Real value : expected.logsumexp) {
    bounds.push_back(
        std::isinf(value) ? 0 : relative + Gamma(c.dtype, 4) * std::abs(value));
  }
  ExpectWithin(logsumexp.Read(), expected.logsumexp, bounds, logsumexp.dtype(),
               what.str() + " logsumexp");

  // The gradient of a score has a few times that error, and those of the sums
  // over D and queries. The probabilities, the output that delta uses, and the
  // gradient itself are rounded, too.
  const int64_t queries = c.q_len * (c.q_heads / c.kv_heads);
  const Real backward_error =
      (1 + 6 * relative +
       Gamma(c.dtype, of_sum(4 * c.dim) + of_sum(queries) + 16)) *
          (1 + rounding) * (1 + rounding) * (1 + rounding) -
      1;
  // Underflow adds an absolute error: in delta by the output, and in the
  // gradient before the scale.
  const Real size(c.size);
  const Real lost_of_score =
      lost + lost_of_out * size * static_cast<Real>(c.dim);
  const Real lost_of_gradients =
      std::max(lost_of_score * Real(args.scale), lost * kept) * size *
      static_cast<Real>(std::max(queries, c.kv_len));
  // Probabilities below the smallest normal number flush to 0. Each is a factor
  // in at most this many terms of this size.
  const Real flushed =
      std::ldexp(Real(1), c.dtype == kFloat64 ? -1021 : -125) *
      static_cast<Real>((c.q_len + c.kv_len) * c.q_heads * c.dim) * 4 *
      std::pow(std::max(Real(1), Real(c.size)), 3);
  const auto check = [&](const Heads& actual, const Reals& values,
                         const Reals& magnitudes, const char* name) {
    Reals limits = magnitudes;
    for (Real& limit : limits) {
      limit = limit * backward_error + flushed + lost_of_gradients;
    }
    ExpectWithin(actual.Read(c), values, limits, c.dtype, what.str() + name);
  };
  check(dq, gradients.dq, gradients.dq_magnitudes, " dq");
  check(dk, gradients.dk, gradients.dk_magnitudes, " dk");
  check(dv, gradients.dv, gradients.dv_magnitudes, " dv");
}

}  // namespace crosshatch::kernel_test
