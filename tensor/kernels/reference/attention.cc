// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <limits>

#include "crosshatch/tensor/kernels/philox.h"
#include "crosshatch/tensor/kernels/reference/reference.h"

namespace crosshatch::reference {
namespace {

/// One tensor [B, T, H, D].
struct Heads {
  Reals values;
  int64_t time, heads, dim;

  size_t Index(int64_t b, int64_t t, int64_t h, int64_t d) const {
    return static_cast<size_t>(((b * time + t) * heads + h) * dim + d);
  }
  Real operator()(int64_t b, int64_t t, int64_t h, int64_t d) const {
    return values[Index(b, t, h, d)];
  }
  Real& at(int64_t b, int64_t t, int64_t h, int64_t d) {
    return values[Index(b, t, h, d)];
  }
};

Heads Read(const HeadsInput& x, DType dtype, int64_t batch, int64_t time,
           int64_t heads, int64_t dim) {
  return {ReadHeads(x, dtype, batch, time, heads, dim), time, heads, dim};
}
Heads Zeros(int64_t batch, const Heads& like) {
  return {Reals(static_cast<size_t>(batch * like.time * like.heads * like.dim)),
          like.time, like.heads, like.dim};
}

struct Inputs {
  Heads q, k, v;
};
Inputs ReadInputs(const AttentionArgs& args) {
  return {Read(args.q, args.dtype, args.batch, args.q_len, args.q_heads,
               args.head_dim),
          Read(args.k, args.dtype, args.batch, args.kv_len, args.kv_heads,
               args.head_dim),
          Read(args.v, args.dtype, args.batch, args.kv_len, args.kv_heads,
               args.head_dim)};
}

constexpr Real kHidden = -std::numeric_limits<Real>::infinity();

bool Sees(const AttentionArgs& args, int64_t b, int64_t i, int64_t j) {
  const int64_t own_key = i + args.kv_len - args.q_len;
  if (args.causal && j > own_key) return false;
  if (args.window > 0 && j <= own_key - args.window) return false;
  if (args.key_ranges == nullptr) return true;
  const int64_t at = b * args.key_ranges_batch_stride + 2 * i;
  const Real begin = ReadElement(args.key_ranges, DType::kInt32, at);
  const Real end = ReadElement(args.key_ranges, DType::kInt32, at + 1);
  const auto key = static_cast<Real>(j);
  return begin <= key && key < end;
}

Real MaskOf(const AttentionArgs& args, int64_t b, int64_t h, int64_t i,
            int64_t j) {
  const int64_t* const strides = args.mask.strides;
  return ReadElement(
      args.mask.data, args.mask.dtype,
      b * strides[0] + h * strides[1] + i * strides[2] + j * strides[3]);
}

/// Returns the largest value of a floating-point mask over keys that a query
/// attends to, or 0 if there is none.
Real MaskShift(const AttentionArgs& args, int64_t b, int64_t h, int64_t i) {
  if (args.mask.data == nullptr || args.mask.dtype == DType::kBool) return 0;
  Real largest = kHidden;
  for (int64_t j = 0; j < args.kv_len; ++j) {
    if (Sees(args, b, i, j)) {
      largest = std::max(largest, MaskOf(args, b, h, i, j));
    }
  }
  return largest == kHidden ? 0 : largest;
}

/// Returns the bias that is added to a score.
/// \param shift MaskShift of the query
Real BiasOf(const AttentionArgs& args, int64_t b, int64_t h, int64_t i,
            int64_t j, Real shift) {
  if (!Sees(args, b, i, j)) return kHidden;
  Real bias = 0;
  if (args.slopes != nullptr) {
    bias -= ReadElement(args.slopes, DType::kFloat32, h) *
            static_cast<Real>(std::abs(i + args.kv_len - args.q_len - j));
  }
  if (args.mask.data == nullptr) return bias;
  const Real mask = MaskOf(args, b, h, i, j);
  if (args.mask.dtype == DType::kBool) return mask == 0 ? kHidden : bias;
  return bias + (mask - shift);
}

/// Returns the factor by which dropout multiplies a probability.
Real Kept(const AttentionArgs& args, int64_t b, int64_t h, int64_t i,
          int64_t j) {
  if (args.dropout == 0) return 1;
  const auto element = static_cast<uint64_t>(
      (((args.first_row + b) * args.total_heads + args.first_head + h) *
           args.q_len +
       i) *
          args.kv_len +
      j);
  const float u = internal::UniformOf(internal::Philox(
      {static_cast<uint32_t>(element), static_cast<uint32_t>(element >> 32),
       static_cast<uint32_t>(args.dropout_stream),
       static_cast<uint32_t>(args.dropout_stream >> 32)},
      {static_cast<uint32_t>(args.dropout_key),
       static_cast<uint32_t>(args.dropout_key >> 32)})[0]);
  if (static_cast<double>(u) < args.dropout) return 0;
  return 1 / (1 - static_cast<Real>(args.dropout));
}

/// One query's probabilities of all keys, and its dropout factors.
struct Row {
  Reals p;
  Reals kept;
  Real logsumexp;
  Real magnitude;  // Excludes keys with p = 0.
};
Row Probabilities(const AttentionArgs& args, const Inputs& in, int64_t b,
                  int64_t h, int64_t i) {
  const int64_t kv_head = h / (args.q_heads / args.kv_heads);
  const auto scale = static_cast<Real>(args.scale);
  Row row;
  row.magnitude = 0;
  Real max = kHidden;
  Reals magnitudes;
  const Real shift = MaskShift(args, b, h, i);
  for (int64_t j = 0; j < args.kv_len; ++j) {
    row.kept.push_back(Kept(args, b, h, i, j));
    Real score = BiasOf(args, b, h, i, j, shift);
    if (score != kHidden) {
      Real magnitude = std::abs(score);
      for (int64_t d = 0; d < args.head_dim; ++d) {
        const Real product = scale * in.q(b, i, h, d) * in.k(b, j, kv_head, d);
        score += product;
        magnitude += std::abs(product);
      }
      magnitudes.push_back(magnitude);
    } else {
      magnitudes.push_back(0);
    }
    row.p.push_back(score);
    max = std::max(max, score);
  }
  if (max == kHidden) {
    row.p.assign(row.p.size(), 0);
    row.logsumexp = max;
    return row;
  }
  Real sum = 0;
  for (Real& p : row.p) sum += p = std::exp(p - max);
  for (size_t j = 0; j < row.p.size(); ++j) {
    row.p[j] /= sum;
    if (row.p[j] > std::ldexp(Real(1), -1100)) {
      row.magnitude = std::max(row.magnitude, magnitudes[j]);
    }
  }
  row.logsumexp = max + std::log(sum);
  return row;
}

}  // namespace

Reals ReadHeads(const HeadsInput& x, DType dtype, int64_t batch, int64_t time,
                int64_t heads, int64_t dim) {
  const KernelShape shape = {4, {batch, time, heads, dim}};
  const int64_t strides[] = {x.batch_stride, x.time_stride, x.head_stride, 1};
  Reals values;
  for (int64_t offset : Offsets(shape, strides)) {
    values.push_back(ReadElement(x.data, dtype, offset));
  }
  return values;
}

Attention AttentionForward(const AttentionArgs& args) {
  const Inputs in = ReadInputs(args);
  Heads out = Zeros(args.batch, in.q);
  Heads magnitudes = out;
  Attention result;
  for (int64_t b = 0; b < args.batch; ++b) {
    for (int64_t h = 0; h < args.q_heads; ++h) {
      const int64_t kv_head = h / (args.q_heads / args.kv_heads);
      for (int64_t i = 0; i < args.q_len; ++i) {
        const Row row = Probabilities(args, in, b, h, i);
        result.logsumexp.push_back(row.logsumexp);
        result.score_magnitude =
            std::max(result.score_magnitude, row.magnitude);
        for (size_t j = 0; j < row.p.size(); ++j) {
          if (row.p[j] == 0) continue;
          for (int64_t d = 0; d < args.head_dim; ++d) {
            const Real term = row.p[j] * row.kept[j] *
                              in.v(b, static_cast<int64_t>(j), kv_head, d);
            out.at(b, i, h, d) += term;
            magnitudes.at(b, i, h, d) += std::abs(term);
          }
        }
      }
    }
  }
  result.out = std::move(out.values);
  result.out_magnitudes = std::move(magnitudes.values);
  return result;
}

AttentionGradients AttentionBackward(const AttentionBackwardArgs& all) {
  const AttentionArgs& args = all.forward;
  const Inputs in = ReadInputs(args);
  const Heads grad = Read(all.grad, args.dtype, args.batch, args.q_len,
                          args.q_heads, args.head_dim);
  Heads dq = Zeros(args.batch, in.q), dq_size = dq;
  Heads dk = Zeros(args.batch, in.k), dk_size = dk;
  Heads dv = dk, dv_size = dk;
  const auto scale = static_cast<Real>(args.scale);
  for (int64_t b = 0; b < args.batch; ++b) {
    for (int64_t h = 0; h < args.q_heads; ++h) {
      const int64_t g = h / (args.q_heads / args.kv_heads);
      for (int64_t i = 0; i < args.q_len; ++i) {
        const Row row = Probabilities(args, in, b, h, i);
        const auto visible = static_cast<int64_t>(row.p.size());
        Reals dp(row.p.size()), dp_size(row.p.size());
        Real delta = 0, delta_size = 0;
        for (int64_t j = 0; j < visible; ++j) {
          const auto at = static_cast<size_t>(j);
          // A key without probability contributes 0.
          if (row.p[at] == 0) continue;
          for (int64_t d = 0; d < args.head_dim; ++d) {
            const Real term = grad(b, i, h, d) * in.v(b, j, g, d);
            dp[at] += term;
            dp_size[at] += std::abs(term);
          }
          dp[at] *= row.kept[at];
          dp_size[at] *= row.kept[at];
          delta += row.p[at] * dp[at];
          delta_size += row.p[at] * dp_size[at];
        }
        for (int64_t j = 0; j < visible; ++j) {
          const auto at = static_cast<size_t>(j);
          if (row.p[at] == 0) continue;
          const Real weight = row.p[at] * row.kept[at];
          const Real ds = row.p[at] * (dp[at] - delta) * scale;
          const Real ds_size = row.p[at] * (dp_size[at] + delta_size) * scale;
          for (int64_t d = 0; d < args.head_dim; ++d) {
            const Real gradient = grad(b, i, h, d);
            dv.at(b, j, g, d) += weight * gradient;
            dv_size.at(b, j, g, d) += weight * std::abs(gradient);
            dq.at(b, i, h, d) += ds * in.k(b, j, g, d);
            dq_size.at(b, i, h, d) += ds_size * std::abs(in.k(b, j, g, d));
            dk.at(b, j, g, d) += ds * in.q(b, i, h, d);
            dk_size.at(b, j, g, d) += ds_size * std::abs(in.q(b, i, h, d));
          }
        }
      }
    }
  }
  return {dq.values,      dq_size.values, dk.values,
          dk_size.values, dv.values,      dv_size.values};
}

}  // namespace crosshatch::reference
