// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/kernels/cpu/targets.h"
// Before the headers that are compiled once for each target.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/kernels/attention_keys.h"
#include "crosshatch/tensor/kernels/cpu/entry_points.h"
#include "crosshatch/tensor/kernels/cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/kernels/cpu/attention.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "crosshatch/tensor/kernels/cpu/gemm_tile-inl.h"
#include "crosshatch/tensor/kernels/cpu/random_run-inl.h"
#include "crosshatch/tensor/kernels/cpu/staging-inl.h"
#include "crosshatch/tensor/kernels/cpu/vector_math-inl.h"
#include "hwy/highway.h"

// Letters: B batch, T time, H heads, D head dim. Scores are computed in tiles
// of kQueries x kKeys, of which one thread has one at a time. Forward keeps a
// running maximum and sum for each query (online softmax); backward recomputes
// the probabilities of a tile from the log-sum-exp.

#ifndef CROSSHATCH_TENSOR_KERNELS_CPU_ATTENTION_ONCE_
#define CROSSHATCH_TENSOR_KERNELS_CPU_ATTENTION_ONCE_
namespace crosshatch::internal {
namespace {

constexpr int64_t kQueries = 64;
constexpr int64_t kKeys = 64;

int64_t KeyTiles(const AttentionArgs& args) {
  return (args.kv_len + kKeys - 1) / kKeys;
}
int64_t QueryTiles(const AttentionArgs& args) {
  return (args.q_len + kQueries - 1) / kQueries;
}
/// Head dim with the padding that tiles of products want.
int64_t PaddedDim(const AttentionArgs& args) {
  return (args.head_dim + 15) / 16 * 16;
}

/// Work is cut by (batch, key head); where these are few, forward also deals
/// out the query tiles of each in `shares`. A share packs keys and values
/// again.
struct ForwardCut {
  int64_t shares;
  int64_t units;
  int64_t parts;
};
ForwardCut CutForward(const AttentionArgs& args) {
  const int64_t pairs = args.batch * args.kv_heads;
  if (pairs == 0) return {1, 0, 0};
  const int64_t tiles =
      QueryTiles(args) * (args.q_heads / std::max<int64_t>(args.kv_heads, 1));
  int64_t shares = 1;
  while (pairs * shares * 2 <= 16 && tiles >= shares * 8) shares *= 2;
  const int64_t units = pairs * shares;
  const int64_t cost = args.q_len * args.kv_len * args.head_dim *
                       (args.q_heads / args.kv_heads) / shares / 32;
  return {shares, units, std::min<int64_t>(PartsFor(units, cost), 32)};
}
int64_t BackwardParts(const AttentionArgs& args) {
  const int64_t pairs = args.batch * args.kv_heads;
  if (pairs == 0) return 0;
  const int64_t cost = args.q_len * args.kv_len * args.head_dim *
                       (args.q_heads / args.kv_heads) / 16;
  return std::min<int64_t>(PartsFor(pairs, cost), 32);
}

// Elements of the compute type that one part works in.
int64_t ForwardElements(const AttentionArgs& args) {
  const int64_t dim = PaddedDim(args);
  const int64_t keys = KeyTiles(args) * kKeys;
  return 2 * keys * dim + kQueries * (2 * dim + kKeys);
}
int64_t BackwardElements(const AttentionArgs& args) {
  const int64_t dim = PaddedDim(args);
  const int64_t keys = KeyTiles(args) * kKeys;
  const int64_t tiles = args.dropout > 0 ? 3 : 2;
  return 5 * keys * dim + kQueries * (3 * dim + tiles * kKeys);
}

}  // namespace
}  // namespace crosshatch::internal
#endif  // CROSSHATCH_TENSOR_KERNELS_CPU_ATTENTION_ONCE_

HWY_BEFORE_NAMESPACE();
namespace crosshatch {
namespace HWY_NAMESPACE {
namespace {

using internal::kKeys;
using internal::kQueries;

/// Row `t` of a head.
const void* RowOf(const HeadsInput& x, DType dtype, int64_t b, int64_t t,
                  int64_t h) {
  return internal::ElementAt(
      x.data, dtype,
      b * x.batch_stride + t * x.time_stride + h * x.head_stride);
}
void* RowOf(const HeadsOutput& x, DType dtype, int64_t b, int64_t t,
            int64_t h) {
  return internal::ElementAt(
      x.data, dtype,
      b * x.batch_stride + t * x.time_stride + h * x.head_stride);
}

/// Rows [begin, begin + rows) of a head, times `scale`, into rows of `padded`
/// elements whose rest is zero.
template <typename T>
void LoadRows(const AttentionArgs& args, const HeadsInput& x, int64_t b,
              int64_t h, int64_t begin, int64_t rows, T scale, T* to) {
  const int64_t padded = internal::PaddedDim(args);
  for (int64_t i = 0; i < rows; ++i, to += padded) {
    LoadRun(RowOf(x, args.dtype, b, begin + i, h), args.dtype, 1, args.head_dim,
            to);
    std::fill(to + args.head_dim, to + padded, T(0));
    if (scale == T(1)) continue;
    for (int64_t d = 0; d < args.head_dim; ++d) to[d] *= scale;
  }
}

/// Rows of `padded` elements into tiles of kKeys: tile j is (padded, kKeys),
/// the transpose of rows [j * kKeys, (j + 1) * kKeys), zero beyond the last.
template <typename T>
void TransposeRows(const T* HWY_RESTRICT rows, int64_t count, int64_t padded,
                   T* HWY_RESTRICT to) {
  for (int64_t begin = 0; begin < count; begin += kKeys) {
    const int64_t n = std::min(kKeys, count - begin);
    for (int64_t d = 0; d < padded; ++d, to += kKeys) {
      const T* from = rows + begin * padded + d;
      for (int64_t i = 0; i < n; ++i) to[i] = from[i * padded];
      std::fill(to + n, to + kKeys, T(0));
    }
  }
}

internal::KeyRun RangeOf(const AttentionArgs& args, int64_t batch,
                         int64_t query) {
  if (args.key_ranges == nullptr) return {0, args.kv_len};
  const int32_t* const range = internal::KeyRangeOf(args, batch, query);
  return {range[0], range[1]};
}

/// What the up to kQueries queries from `begin` on see.
class SeenKeys {
 public:
  SeenKeys(const AttentionArgs& args, int64_t batch, int64_t begin,
           int64_t rows)
      : kv_len_(args.kv_len), rows_(rows) {
    int64_t first = args.kv_len;
    int64_t last = 0;
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t query = begin + r;
      runs_[r] = internal::KeysOf(args, query, RangeOf(args, batch, query));
      if (runs_[r].empty()) continue;
      first = std::min(first, runs_[r].begin);
      last = std::max(last, runs_[r].end);
    }
    first_tile_ = first / kKeys;
    tiles_ = std::max(first_tile_, (last + kKeys - 1) / kKeys);
  }

  internal::KeyRun run(int64_t row) const { return runs_[row]; }

  /// Key tiles [first_tile, tiles) are seen by any.
  int64_t first_tile() const { return first_tile_; }
  int64_t tiles() const { return tiles_; }

  /// Calls body(first, count, keys, rows) for groups of the queries, of which
  /// `keys` of the tile that starts at `key` are seen by any: one group where
  /// all see all, groups of 16 along borders. keys.begin is a multiple of
  /// kGemmColumns, and rows[r] is what query first + r sees, counted from
  /// there.
  template <typename F>
  HWY_INLINE void ForGroups(int64_t key, F&& body) const {
    const int64_t all = std::min(kKeys, kv_len_ - key);
    internal::KeyRun rows[kQueries];
    bool whole = true;
    for (int64_t r = 0; r < rows_; ++r) {
      const int64_t end = std::clamp<int64_t>(runs_[r].end - key, 0, all);
      rows[r] = {std::clamp<int64_t>(runs_[r].begin - key, 0, end), end};
      whole = whole && rows[r].begin == 0 && end == all;
    }
    const int64_t step = whole ? rows_ : 16;
    for (int64_t first = 0; first < rows_; first += step) {
      const int64_t count = std::min(step, rows_ - first);
      internal::KeyRun seen = {kKeys, 0};
      for (int64_t r = first; r < first + count; ++r) {
        if (rows[r].empty()) continue;
        seen.begin = std::min(seen.begin, rows[r].begin);
        seen.end = std::max(seen.end, rows[r].end);
      }
      if (seen.empty()) continue;
      seen.begin = seen.begin / kGemmColumns * kGemmColumns;
      for (int64_t r = first; r < first + count; ++r) {
        rows[r].begin = std::max<int64_t>(rows[r].begin - seen.begin, 0);
        rows[r].end = std::max<int64_t>(rows[r].end - seen.begin, 0);
      }
      body(first, count, seen, rows + first);
    }
  }

 private:
  const int64_t kv_len_;
  const int64_t rows_;
  int64_t first_tile_;
  int64_t tiles_;
  internal::KeyRun runs_[kQueries];
};

/// One query head of one batch row.
struct HeadAt {
  int64_t batch;
  int64_t head;
};

/// What the mask has for `count` keys from `key` on.
template <typename T>
void LoadMask(const AttentionArgs& args, const HeadAt& at, int64_t query,
              int64_t key, int64_t count, T* to) {
  const int64_t* const strides = args.mask.strides;
  LoadRun(internal::ElementAt(args.mask.data, args.mask.dtype,
                              at.batch * strides[0] + at.head * strides[1] +
                                  query * strides[2] + key * strides[3]),
          args.mask.dtype, strides[3], count, to);
}

template <typename T>
T MaxOf(const T* HWY_RESTRICT row, int64_t count) {
  const hn::CappedTag<T, kGemmColumns> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto none = hn::Set(d, -std::numeric_limits<T>::infinity());
  auto max = none;
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    max = hn::Max(max, hn::LoadU(d, row + i));
  }
  if (i < count) {
    const auto seen = hn::FirstN(d, static_cast<size_t>(count - i));
    max = hn::Max(max, hn::IfThenElse(seen, hn::LoadU(d, row + i), none));
  }
  return hn::GetLane(hn::MaxOfLanes(d, max));
}

/// What scores are shifted by whose maximum or log-sum-exp is `x`: where all
/// are -inf, and -inf less -inf would be NaN, their exponentials are zeros.
template <typename T>
T FiniteShift(T x) {
  return x == -std::numeric_limits<T>::infinity() ? T(0) : x;
}

/// What scores of the queries from `begin` on are kept less by, in `shifts`.
template <typename T>
void MaskShifts(const AttentionArgs& args, const HeadAt& at,
                const SeenKeys& seen, int64_t begin, int64_t rows, T* shifts) {
  std::fill(shifts, shifts + rows, T(0));
  if (args.mask.data == nullptr || args.mask.dtype == DType::kBool) return;
  T mask[kKeys];
  for (int64_t r = 0; r < rows; ++r) {
    const internal::KeyRun run = seen.run(r);
    T largest = -std::numeric_limits<T>::infinity();
    for (int64_t key = run.begin; key < run.end; key += kKeys) {
      const int64_t count = std::min(kKeys, run.end - key);
      LoadMask(args, at, begin + r, key, count, mask);
      largest = std::max(largest, MaxOf(mask, count));
    }
    shifts[r] = FiniteShift(largest);
  }
}

/// Whether the mask leaves any of the keys to any of `rows` queries.
template <typename T>
bool MaskShowsAny(const AttentionArgs& args, const HeadAt& at, int64_t query,
                  int64_t rows, int64_t key, int64_t count) {
  const T hidden = args.mask.dtype == DType::kBool
                       ? T(0)
                       : -std::numeric_limits<T>::infinity();
  T values[kKeys];
  for (int64_t r = 0; r < rows; ++r) {
    LoadMask(args, at, query + r, key, count, values);
    for (int64_t j = 0; j < count; ++j) {
      if (values[j] != hidden) return true;
    }
  }
  return false;
}

/// Makes scores of the products in `row`, which begins at key `key`: those of
/// the keys in `seen`, counted from there, get what is added to them; those
/// before them become -inf.
template <typename T>
HWY_INLINE void FinishScores(const AttentionArgs& args, const HeadAt& at,
                             int64_t query, int64_t key, internal::KeyRun seen,
                             T mask_shift, T* HWY_RESTRICT row) {
  constexpr T kHidden = -std::numeric_limits<T>::infinity();
  if (args.slopes != nullptr) {
    const auto slope = static_cast<T>(args.slopes[at.head]);
    const int64_t own = query + args.kv_len - args.q_len - key;
    for (int64_t j = seen.begin; j < seen.end; ++j) {
      row[j] -= slope * static_cast<T>(j < own ? own - j : j - own);
    }
  }
  if (args.mask.data != nullptr && !seen.empty()) {
    T mask[kKeys];
    LoadMask(args, at, query, key + seen.begin, seen.end - seen.begin,
             mask + seen.begin);
    if (args.mask.dtype == DType::kBool) {
      for (int64_t j = seen.begin; j < seen.end; ++j) {
        if (mask[j] == T(0)) row[j] = kHidden;
      }
    } else {
      for (int64_t j = seen.begin; j < seen.end; ++j) {
        row[j] += mask[j] - mask_shift;
      }
    }
  }
  std::fill(row, row + seen.begin, kHidden);
}

/// to = row with dropout, for the keys from `key` on.
template <typename T>
void DropRow(const AttentionArgs& args, const HeadAt& at, int64_t query,
             int64_t key, int64_t count, const T* row, T* to) {
  const Generator generator = {args.dropout_key, args.dropout_stream,
                               RandomKind::kUniform, 0, 1};
  const auto bound =
      static_cast<float>(std::ceil(args.dropout * 0x1.0p24) * 0x1.0p-24);
  // Of dropout 1 nothing is kept.
  const auto scale =
      static_cast<T>(args.dropout < 1 ? 1 / (1 - args.dropout) : 0);
  float u[kKeys];
  Generate(
      generator,
      static_cast<uint64_t>(
          internal::FirstProbability(args, at.batch, at.head, query) + key),
      u, count);
  for (int64_t j = 0; j < count; ++j) {
    to[j] = u[j] >= bound ? row[j] * scale : T(0);
  }
}

/// row = exp(row - shift) for the first `count`, zero for the rest of `width`;
/// returns their sum, lane by lane and then over lanes.
template <typename T>
T ExpRow(T* HWY_RESTRICT row, int64_t count, int64_t width, T shift) {
  const hn::CappedTag<T, kGemmColumns> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto v_shift = hn::Set(d, shift);
  auto sum = hn::Zero(d);
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto p = ExpOfNonPositive(d, hn::Sub(hn::LoadU(d, row + i), v_shift));
    sum = hn::Add(sum, p);
    hn::StoreU(p, d, row + i);
  }
  if (i < count) {
    const auto seen = hn::FirstN(d, static_cast<size_t>(count - i));
    const auto p = hn::IfThenElseZero(
        seen, ExpOfNonPositive(d, hn::Sub(hn::LoadU(d, row + i), v_shift)));
    sum = hn::Add(sum, p);
    hn::StoreU(p, d, row + i);
    i += lanes;
  }
  if (i < width) std::fill(row + i, row + width, T(0));
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

/// Columns to compute for `seen` keys.
int64_t WidthOf(int64_t seen) {
  return (seen + kGemmColumns - 1) / kGemmColumns * kGemmColumns;
}

template <typename T>
void ScaleRow(T* HWY_RESTRICT row, int64_t count, T factor) {
  for (int64_t i = 0; i < count; ++i) row[i] *= factor;
}

/// One (batch, key head) or a share of its query tiles.
template <typename T>
void ForwardUnit(const AttentionArgs& args, const internal::ForwardCut& cut,
                 int64_t unit, T* workspace) {
  const int64_t share = unit % cut.shares;
  const int64_t b = unit / cut.shares / args.kv_heads;
  const int64_t kv_head = unit / cut.shares % args.kv_heads;
  const int64_t heads = args.q_heads / args.kv_heads;
  const int64_t dim = internal::PaddedDim(args);
  const int64_t keys = internal::KeyTiles(args) * kKeys;
  const int64_t query_tiles = internal::QueryTiles(args);

  T* const key_tiles = workspace;  // [tiles][dim][kKeys]
  T* const values = key_tiles + keys * dim;
  T* const queries = values + keys * dim;
  T* const out = queries + kQueries * dim;
  T* const scores = out + kQueries * dim;  // [kQueries][kKeys]

  // The keys pass through the place of the values.
  LoadRows(args, args.k, b, kv_head, 0, args.kv_len, T(1), values);
  TransposeRows(values, args.kv_len, dim, key_tiles);
  LoadRows(args, args.v, b, kv_head, 0, args.kv_len, T(1), values);

  T max[kQueries];
  T sum[kQueries];
  for (int64_t i = share; i < heads * query_tiles; i += cut.shares) {
    const int64_t head = kv_head * heads + i / query_tiles;
    const int64_t begin = i % query_tiles * kQueries;
    const int64_t rows = std::min(kQueries, args.q_len - begin);
    LoadRows(args, args.q, b, head, begin, rows, static_cast<T>(args.scale),
             queries);
    std::fill(out, out + rows * dim, T(0));
    std::fill(max, max + rows, -std::numeric_limits<T>::infinity());
    std::fill(sum, sum + rows, T(0));

    const HeadAt at = {b, head};
    const SeenKeys seen(args, b, begin, rows);
    T mask_shifts[kQueries];
    MaskShifts(args, at, seen, begin, rows, mask_shifts);
    for (int64_t tile = seen.first_tile(); tile < seen.tiles(); ++tile) {
      const int64_t tile_key = tile * kKeys;
      const auto group = [&](int64_t first, int64_t count,
                             internal::KeyRun keys,
                             const internal::KeyRun* of_row) HWY_ATTR {
        const int64_t key = tile_key + keys.begin;
        const int64_t here = keys.end - keys.begin;
        if (args.mask.data != nullptr &&
            !MaskShowsAny<T>(args, at, begin + first, count, key, here)) {
          return;
        }
        T* const group_scores = scores + first * kKeys;
        T* const group_out = out + first * dim;
        const int64_t width = WidthOf(here);
        GemmTile<false>(count, width, args.head_dim, queries + first * dim, dim,
                        int64_t{1}, key_tiles + tile_key * dim + keys.begin,
                        kKeys, group_scores, kKeys);
        T shift[kQueries];
        T factor[kQueries];
        for (int64_t r = 0; r < count; ++r) {
          T* const row = group_scores + r * kKeys;
          FinishScores(args, at, begin + first + r, key, of_row[r],
                       mask_shifts[first + r], row);
          T& old_max = max[first + r];
          const T new_max = std::max(old_max, MaxOf(row, of_row[r].end));
          // Of nothing but -inf so far: any finite shift gives zeros.
          shift[r] = FiniteShift(new_max);
          factor[r] = old_max - shift[r];
          old_max = new_max;
        }
        if (tile > seen.first_tile()) {
          MapRun([](auto d, auto x) HWY_ATTR { return ExpOfNonPositive(d, x); },
                 factor, count, factor);
        }
        for (int64_t r = 0; r < count; ++r) {
          T* const row = group_scores + r * kKeys;
          if (tile > seen.first_tile() && factor[r] != T(1)) {
            sum[first + r] *= factor[r];
            ScaleRow(group_out + r * dim, dim, factor[r]);
          }
          sum[first + r] += ExpRow(row, of_row[r].end, width, shift[r]);
          if (args.dropout > 0) {
            DropRow(args, at, begin + first + r, key, here, row, row);
          }
        }
        GemmTile<true>(count, dim, here, group_scores, kKeys, int64_t{1},
                       values + key * dim, dim, group_out, dim);
      };
      seen.ForGroups(tile_key, group);
    }

    T* logsumexp = static_cast<T*>(args.logsumexp) +
                   (b * args.q_heads + head) * args.q_len + begin;
    MapRun([](auto d, auto x) HWY_ATTR { return FullLog(d, x); }, logsumexp,
           rows, sum);
    for (int64_t r = 0; r < rows; ++r) {
      logsumexp[r] += FiniteShift(max[r]);
      if (sum[r] != T(0)) ScaleRow(out + r * dim, dim, T(1) / sum[r]);
      StoreRun(out + r * dim, RowOf(args.out, args.dtype, b, begin + r, head),
               args.dtype, 1, args.head_dim);
    }
  }
}

template <typename T>
void ForwardAs(const AttentionArgs& args, KernelContext& context) {
  const internal::ForwardCut cut = internal::CutForward(args);
  internal::ForParts(context, cut.parts, [&](int64_t part) HWY_ATTR {
    T* workspace = static_cast<T*>(args.workspace) +
                   part * internal::ForwardElements(args);
    const auto range = internal::RangeOfPart(cut.units, cut.parts, part);
    for (int64_t unit = range.begin; unit < range.end; ++unit) {
      ForwardUnit(args, cut, unit, workspace);
    }
  });
}

void Forward(const AttentionArgs& args, KernelContext& context) {
  internal::DispatchFloat(args.dtype, "attention", [&](auto zero) HWY_ATTR {
    ForwardAs<decltype(zero)>(args, context);
  });
}

/// dscores = probabilities * (dscores - delta), row by row.
template <typename T>
void ScoreGradients(const T* HWY_RESTRICT probabilities,
                    T* HWY_RESTRICT dscores, int64_t rows, int64_t width,
                    const T* delta) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t j = 0; j < width; ++j) {
      const int64_t at = r * kKeys + j;
      dscores[at] = probabilities[at] * (dscores[at] - delta[r]);
    }
  }
}

/// The same where `kept` are the probabilities after dropout, which dscores are
/// the gradients of.
template <typename T>
void DroppedScoreGradients(const T* HWY_RESTRICT probabilities,
                           const T* HWY_RESTRICT kept, T* HWY_RESTRICT dscores,
                           int64_t rows, int64_t width, const T* delta) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t j = 0; j < width; ++j) {
      const int64_t at = r * kKeys + j;
      dscores[at] = kept[at] * dscores[at] - probabilities[at] * delta[r];
    }
  }
}

template <typename T>
T Dot(const T* a, const T* b, int64_t count) {
  T sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += a[i] * b[i];
  return sum;
}

template <typename T>
void BackwardUnit(const AttentionBackwardArgs& all, int64_t unit,
                  T* workspace) {
  const AttentionArgs& args = all.forward;
  const int64_t b = unit / args.kv_heads;
  const int64_t kv_head = unit % args.kv_heads;
  const int64_t heads = args.q_heads / args.kv_heads;
  const int64_t dim = internal::PaddedDim(args);
  const int64_t keys = internal::KeyTiles(args) * kKeys;

  T* const key_tiles = workspace;  // [tiles][dim][kKeys]
  T* const value_tiles = key_tiles + keys * dim;
  T* const key_rows = value_tiles + keys * dim;  // [keys][dim]
  T* const dkeys = key_rows + keys * dim;
  T* const dvalues = dkeys + keys * dim;
  T* const queries = dvalues + keys * dim;  // [kQueries][dim]
  T* const grads = queries + kQueries * dim;
  T* const dqueries = grads + kQueries * dim;
  T* const scores = dqueries + kQueries * dim;  // [kQueries][kKeys]
  T* const dscores = scores + kQueries * kKeys;
  // With dropout: the probabilities after it.
  T* const dropped = dscores + kQueries * kKeys;

  LoadRows(args, args.v, b, kv_head, 0, args.kv_len, T(1), key_rows);
  TransposeRows(key_rows, args.kv_len, dim, value_tiles);
  LoadRows(args, args.k, b, kv_head, 0, args.kv_len, T(1), key_rows);
  TransposeRows(key_rows, args.kv_len, dim, key_tiles);
  std::fill(dkeys, dkeys + 2 * keys * dim, T(0));

  T delta[kQueries];
  const auto scale = static_cast<T>(args.scale);
  for (int64_t head = kv_head * heads; head < (kv_head + 1) * heads; ++head) {
    const T* logsumexp = static_cast<const T*>(args.logsumexp) +
                         (b * args.q_heads + head) * args.q_len;
    for (int64_t begin = 0; begin < args.q_len; begin += kQueries) {
      const int64_t rows = std::min(kQueries, args.q_len - begin);
      LoadRows(args, all.grad, b, head, begin, rows, T(1), grads);
      // The forward output passes through the place of dqueries.
      const HeadsInput out = {args.out.data, args.out.batch_stride,
                              args.out.time_stride, args.out.head_stride};
      LoadRows(args, out, b, head, begin, rows, T(1), dqueries);
      for (int64_t r = 0; r < rows; ++r) {
        delta[r] = Dot(grads + r * dim, dqueries + r * dim, args.head_dim);
      }
      LoadRows(args, args.q, b, head, begin, rows, scale, queries);
      std::fill(dqueries, dqueries + rows * dim, T(0));

      const HeadAt at = {b, head};
      const SeenKeys seen(args, b, begin, rows);
      T mask_shifts[kQueries];
      MaskShifts(args, at, seen, begin, rows, mask_shifts);
      for (int64_t tile = seen.first_tile(); tile < seen.tiles(); ++tile) {
        const int64_t tile_key = tile * kKeys;
        const auto group = [&](int64_t first, int64_t count,
                               internal::KeyRun keys,
                               const internal::KeyRun* of_row) HWY_ATTR {
          const int64_t key = tile_key + keys.begin;
          const int64_t here = keys.end - keys.begin;
          if (args.mask.data != nullptr &&
              !MaskShowsAny<T>(args, at, begin + first, count, key, here)) {
            return;
          }
          const int64_t width = WidthOf(here);
          T* const p = scores + first * kKeys;
          T* const ds = dscores + first * kKeys;
          T* const kept = args.dropout > 0 ? dropped + first * kKeys : p;
          GemmTile<false>(count, width, args.head_dim, queries + first * dim,
                          dim, int64_t{1},
                          key_tiles + tile_key * dim + keys.begin, kKeys, p,
                          kKeys);
          for (int64_t r = 0; r < count; ++r) {
            const int64_t query = begin + first + r;
            T* const row = p + r * kKeys;
            FinishScores(args, at, query, key, of_row[r],
                         mask_shifts[first + r], row);
            ExpRow(row, of_row[r].end, width, FiniteShift(logsumexp[query]));
            if (args.dropout > 0) {
              DropRow(args, at, query, key, width, row, kept + r * kKeys);
            }
          }
          GemmTile<true>(here, dim, count, kept, int64_t{1}, kKeys,
                         grads + first * dim, dim, dvalues + key * dim, dim);
          GemmTile<false>(count, width, args.head_dim, grads + first * dim, dim,
                          int64_t{1}, value_tiles + tile_key * dim + keys.begin,
                          kKeys, ds, kKeys);
          if (args.dropout > 0) {
            DroppedScoreGradients(p, kept, ds, count, width, delta + first);
          } else {
            ScoreGradients(p, ds, count, width, delta + first);
          }
          GemmTile<true>(here, dim, count, ds, int64_t{1}, kKeys,
                         queries + first * dim, dim, dkeys + key * dim, dim);
          GemmTile<true>(count, dim, here, ds, kKeys, int64_t{1},
                         key_rows + key * dim, dim, dqueries + first * dim,
                         dim);
        };
        seen.ForGroups(tile_key, group);
      }
      for (int64_t r = 0; r < rows; ++r) {
        ScaleRow(dqueries + r * dim, dim, scale);
        StoreRun(dqueries + r * dim,
                 RowOf(all.dq, args.dtype, b, begin + r, head), args.dtype, 1,
                 args.head_dim);
      }
    }
  }
  for (int64_t t = 0; t < args.kv_len; ++t) {
    StoreRun(dkeys + t * dim, RowOf(all.dk, args.dtype, b, t, kv_head),
             args.dtype, 1, args.head_dim);
    StoreRun(dvalues + t * dim, RowOf(all.dv, args.dtype, b, t, kv_head),
             args.dtype, 1, args.head_dim);
  }
}

template <typename T>
void BackwardAs(const AttentionBackwardArgs& args, KernelContext& context) {
  const int64_t pairs = args.forward.batch * args.forward.kv_heads;
  const int64_t parts = internal::BackwardParts(args.forward);
  internal::ForParts(context, parts, [&](int64_t part) HWY_ATTR {
    T* workspace = static_cast<T*>(args.workspace) +
                   part * internal::BackwardElements(args.forward);
    const auto range = internal::RangeOfPart(pairs, parts, part);
    for (int64_t unit = range.begin; unit < range.end; ++unit) {
      BackwardUnit(args, unit, workspace);
    }
  });
}

void Backward(const AttentionBackwardArgs& args, KernelContext& context) {
  internal::DispatchFloat(
      args.forward.dtype, "attention_backward",
      [&](auto zero) HWY_ATTR { BackwardAs<decltype(zero)>(args, context); });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace crosshatch
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace crosshatch {

HWY_EXPORT(Forward);
HWY_EXPORT(Backward);

namespace internal {

int64_t CpuAttentionWorkspaceBytes(const AttentionArgs& args) {
  return CutForward(args).parts * ForwardElements(args) *
         SizeOf(StatisticsDType(args.dtype));
}

void CpuAttention(const AttentionArgs& args, KernelContext& context) {
  if (args.batch * args.q_len * args.q_heads == 0) return;
  CH_CHECK(args.kv_heads > 0 && args.q_heads % args.kv_heads == 0)
      << "attention kernel: " << args.q_heads << " query heads and "
      << args.kv_heads << " key heads";
  HWY_DYNAMIC_DISPATCH(Forward)(args, context);
}

int64_t CpuAttentionBackwardWorkspaceBytes(const AttentionBackwardArgs& args) {
  return BackwardParts(args.forward) * BackwardElements(args.forward) *
         SizeOf(StatisticsDType(args.forward.dtype));
}

void CpuAttentionBackward(const AttentionBackwardArgs& args,
                          KernelContext& context) {
  const AttentionArgs& forward = args.forward;
  if (forward.batch * forward.kv_heads == 0) return;
  CH_CHECK(forward.q_heads % forward.kv_heads == 0)
      << "attention_backward kernel: " << forward.q_heads << " query heads and "
      << forward.kv_heads << " key heads";
  HWY_DYNAMIC_DISPATCH(Backward)(args, context);
}

}  // namespace internal
}  // namespace crosshatch
#endif  // HWY_ONCE
