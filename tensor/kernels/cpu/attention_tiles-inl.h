// SPDX-License-Identifier: Apache-2.0

/// \file
/// Shared code of attention's forward and backward: tiles of queries and keys,
/// masks, and the probabilities of a row.

#if defined(CROSSHATCH_TENSOR_KERNELS_CPU_ATTENTION_TILES_INL_H_) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef CROSSHATCH_TENSOR_KERNELS_CPU_ATTENTION_TILES_INL_H_
#undef CROSSHATCH_TENSOR_KERNELS_CPU_ATTENTION_TILES_INL_H_
#else
#define CROSSHATCH_TENSOR_KERNELS_CPU_ATTENTION_TILES_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "crosshatch/tensor/kernels/attention_keys.h"
#include "crosshatch/tensor/kernels/cpu/gemm_tile-inl.h"
#include "crosshatch/tensor/kernels/cpu/random_run-inl.h"
#include "crosshatch/tensor/kernels/cpu/staging-inl.h"
#include "crosshatch/tensor/kernels/cpu/vector_math-inl.h"
#include "hwy/highway.h"

// Letters: B batch, T time, H heads, D head dim. Scores are computed in tiles
// of kQueries x kKeys, of which one thread has one at a time. Forward keeps a
// running maximum and sum for each query (online softmax); backward recomputes
// the probabilities of a tile from the log-sum-exp.

#ifndef CROSSHATCH_TENSOR_KERNELS_CPU_ATTENTION_TILES_ONCE_
#define CROSSHATCH_TENSOR_KERNELS_CPU_ATTENTION_TILES_ONCE_
namespace crosshatch::internal {

inline constexpr int64_t kQueries = 64;
inline constexpr int64_t kKeys = 64;

inline int64_t KeyTiles(const AttentionArgs& args) {
  return (args.kv_len + kKeys - 1) / kKeys;
}
inline int64_t QueryTiles(const AttentionArgs& args) {
  return (args.q_len + kQueries - 1) / kQueries;
}
/// Returns the head dim padded as products of tiles require.
inline int64_t PaddedDim(const AttentionArgs& args) {
  return (args.head_dim + 15) / 16 * 16;
}

}  // namespace crosshatch::internal
#endif  // CROSSHATCH_TENSOR_KERNELS_CPU_ATTENTION_TILES_ONCE_

HWY_BEFORE_NAMESPACE();
namespace crosshatch {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using internal::kKeys;
using internal::kQueries;

/// Row `t` of a head.
inline const void* RowOf(const HeadsInput& x, DType dtype, int64_t b, int64_t t,
                         int64_t h) {
  return internal::ElementAt(
      x.data, dtype,
      b * x.batch_stride + t * x.time_stride + h * x.head_stride);
}
inline void* RowOf(const HeadsOutput& x, DType dtype, int64_t b, int64_t t,
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

inline internal::KeyRun RangeOf(const AttentionArgs& args, int64_t batch,
                                int64_t query) {
  if (args.key_ranges == nullptr) return {0, args.kv_len};
  const int32_t* const range = internal::KeyRangeOf(args, batch, query);
  return {range[0], range[1]};
}

/// The keys that up to kQueries queries from `begin` on attend to.
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

  /// Key tiles [first_tile, tiles) have keys of some query.
  int64_t first_tile() const { return first_tile_; }
  int64_t tiles() const { return tiles_; }

  /// Calls body(first, count, keys, rows) for groups of the queries. `keys` are
  /// the keys of the tile at `key` that some query of the group attends to.
  /// There is one group if all attend to all keys, and groups of 16 along
  /// borders. keys.begin is a multiple of kGemmColumns, and rows[r] has the
  /// keys of query first + r, relative to it.
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

/// Loads the mask's values for `count` keys from `key` on.
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

/// Returns the shift of scores whose maximum or log-sum-exp is `x`. If all
/// scores are -inf, the shift is finite, because -inf - -inf would be NaN; the
/// exponentials are then zeros.
template <typename T>
T FiniteShift(T x) {
  return x == -std::numeric_limits<T>::infinity() ? T(0) : x;
}

/// Computes the shifts that are subtracted from the scores of the queries from
/// `begin` on.
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

/// Returns whether the mask allows any of the keys to any of `rows` queries.
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

/// Turns the products in `row`, which begins at key `key`, into scores: adds
/// the biases for the keys in `seen`, relative to `key`; those before them
/// become -inf.
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

/// Applies dropout to `row`, for the keys from `key` on.
template <typename T>
void DropRow(const AttentionArgs& args, const HeadAt& at, int64_t query,
             int64_t key, int64_t count, const T* row, T* to) {
  const Generator generator = {args.dropout_key, args.dropout_stream,
                               RandomKind::kUniform, 0, 1};
  const auto bound =
      static_cast<float>(std::ceil(args.dropout * 0x1.0p24) * 0x1.0p-24);
  // With dropout 1 nothing is kept.
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
inline int64_t WidthOf(int64_t seen) {
  return (seen + kGemmColumns - 1) / kGemmColumns * kGemmColumns;
}

template <typename T>
void ScaleRow(T* HWY_RESTRICT row, int64_t count, T factor) {
  for (int64_t i = 0; i < count; ++i) row[i] *= factor;
}

}  // namespace HWY_NAMESPACE
}  // namespace crosshatch
HWY_AFTER_NAMESPACE();

#endif  // CROSSHATCH_TENSOR_KERNELS_CPU_ATTENTION_TILES_INL_H_
