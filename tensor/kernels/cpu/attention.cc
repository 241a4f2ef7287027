// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/kernels/cpu/targets.h"
// Before the headers that are compiled once for each target.
#include <algorithm>
#include <cstdint>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/kernels/cpu/entry_points.h"
#include "crosshatch/tensor/kernels/cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/kernels/cpu/attention.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "crosshatch/tensor/kernels/cpu/attention_tiles-inl.h"
#include "crosshatch/tensor/kernels/cpu/staging-inl.h"
#include "hwy/highway.h"

#ifndef CROSSHATCH_TENSOR_KERNELS_CPU_ATTENTION_ONCE_
#define CROSSHATCH_TENSOR_KERNELS_CPU_ATTENTION_ONCE_
namespace crosshatch::internal {
namespace {

/// Work is split by (batch, key head). If there are few of these, forward also
/// splits the query tiles of each into `shares`. Each share packs keys and
/// values again.
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

// Elements of the compute type in one part's workspace.
int64_t ForwardElements(const AttentionArgs& args) {
  const int64_t dim = PaddedDim(args);
  const int64_t keys = KeyTiles(args) * kKeys;
  return 2 * keys * dim + kQueries * (2 * dim + kKeys);
}

int64_t BackwardParts(const AttentionArgs& args) {
  const int64_t pairs = args.batch * args.kv_heads;
  if (pairs == 0) return 0;
  const int64_t cost = args.q_len * args.kv_len * args.head_dim *
                       (args.q_heads / args.kv_heads) / 16;
  return std::min<int64_t>(PartsFor(pairs, cost), 32);
}

// Elements of the compute type in one part's workspace.
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

/// Computes one (batch, key head) or a share of its query tiles.
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

  // The keys are loaded via the values' memory.
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
        GemmTile<false, TileOrder::kRows>(
            count, width, args.head_dim, queries + first * dim, dim,
            key_tiles + tile_key * dim + keys.begin, kKeys, group_scores,
            kKeys);
        T shift[kQueries];
        T factor[kQueries];
        for (int64_t r = 0; r < count; ++r) {
          T* const row = group_scores + r * kKeys;
          FinishScores(args, at, begin + first + r, key, of_row[r],
                       mask_shifts[first + r], row);
          T& old_max = max[first + r];
          const T new_max = std::max(old_max, MaxOf(row, of_row[r].end));
          // All scores so far are -inf: any finite shift gives zeros.
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
        GemmTile<true, TileOrder::kRows>(count, dim, here, group_scores, kKeys,
                                         values + key * dim, dim, group_out,
                                         dim);
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

void Attention(const AttentionArgs& args, KernelContext& context) {
  if (args.batch * args.q_len * args.q_heads == 0) return;
  CH_CHECK(args.kv_heads > 0 && args.q_heads % args.kv_heads == 0)
      << "attention kernel: " << args.q_heads << " query heads and "
      << args.kv_heads << " key heads";
  internal::DispatchFloat(args.dtype, "attention", [&](auto zero) HWY_ATTR {
    ForwardAs<decltype(zero)>(args, context);
  });
}

/// Computes dscores = probabilities * (dscores - delta), row by row.
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

/// Computes the same if dscores are the gradients of `kept`, the probabilities
/// after dropout.
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
      // The forward output is loaded via the memory of dqueries.
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
          GemmTile<false, TileOrder::kRows>(
              count, width, args.head_dim, queries + first * dim, dim,
              key_tiles + tile_key * dim + keys.begin, kKeys, p, kKeys);
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
          GemmTile<true, TileOrder::kColumns>(here, dim, count, kept, kKeys,
                                              grads + first * dim, dim,
                                              dvalues + key * dim, dim);
          GemmTile<false, TileOrder::kRows>(
              count, width, args.head_dim, grads + first * dim, dim,
              value_tiles + tile_key * dim + keys.begin, kKeys, ds, kKeys);
          if (args.dropout > 0) {
            DroppedScoreGradients(p, kept, ds, count, width, delta + first);
          } else {
            ScoreGradients(p, ds, count, width, delta + first);
          }
          GemmTile<true, TileOrder::kColumns>(here, dim, count, ds, kKeys,
                                              queries + first * dim, dim,
                                              dkeys + key * dim, dim);
          GemmTile<true, TileOrder::kRows>(count, dim, here, ds, kKeys,
                                           key_rows + key * dim, dim,
                                           dqueries + first * dim, dim);
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

void AttentionBackward(const AttentionBackwardArgs& args,
                       KernelContext& context) {
  const AttentionArgs& forward = args.forward;
  if (forward.batch * forward.kv_heads == 0) return;
  CH_CHECK(forward.q_heads % forward.kv_heads == 0)
      << "attention_backward kernel: " << forward.q_heads << " query heads and "
      << forward.kv_heads << " key heads";
  internal::DispatchFloat(
      forward.dtype, "attention_backward",
      [&](auto zero) HWY_ATTR { BackwardAs<decltype(zero)>(args, context); });
}

/// Halves of heads are rotated in pieces of this many elements.
constexpr int64_t kRopePiece = 256;

template <typename T>
void RopeAs(const RopeArgs& args, KernelContext& context) {
  const int64_t half = args.head_dim / 2;
  internal::ForRanges(
      context, args.batch * args.time, args.heads * args.head_dim / 2,
      [&](int64_t begin, int64_t end) HWY_ATTR {
        HWY_ALIGN T cos_buffer[kRopePiece];
        HWY_ALIGN T sin_buffer[kRopePiece];
        HWY_ALIGN T low_buffer[kRopePiece];
        HWY_ALIGN T high_buffer[kRopePiece];
        HWY_ALIGN T low_out[kRopePiece];
        HWY_ALIGN T high_out[kRopePiece];
        for (int64_t row = begin; row < end; ++row) {
          const int64_t b = row / args.time;
          const int64_t t = row % args.time;
          for (int64_t start = 0; start < half; start += kRopePiece) {
            const int64_t count = std::min(kRopePiece, half - start);
            const int64_t angle =
                b * args.table_batch_stride + t * half + start;
            const T* cos =
                Staged(args.cos + angle, DType::kFloat32, count, cos_buffer);
            LoadRun(args.sin + angle, DType::kFloat32, 1, count, sin_buffer);
            if (args.inverse) {
              for (int64_t i = 0; i < count; ++i)
                sin_buffer[i] = -sin_buffer[i];
            }
            for (int64_t h = 0; h < args.heads; ++h) {
              const void* from = internal::ElementAt(
                  args.x.data, args.dtype,
                  b * args.x.batch_stride + t * args.x.time_stride +
                      h * args.x.head_stride + start);
              void* to = internal::ElementAt(
                  args.out.data, args.dtype,
                  b * args.out.batch_stride + t * args.out.time_stride +
                      h * args.out.head_stride + start);
              const T* low = Staged(from, args.dtype, count, low_buffer);
              const T* high =
                  Staged(internal::ElementAt(from, args.dtype, half),
                         args.dtype, count, high_buffer);
              for (int64_t i = 0; i < count; ++i) {
                low_out[i] = low[i] * cos[i] - high[i] * sin_buffer[i];
                high_out[i] = high[i] * cos[i] + low[i] * sin_buffer[i];
              }
              StoreRun(low_out, to, args.dtype, 1, count);
              StoreRun(high_out, internal::ElementAt(to, args.dtype, half),
                       args.dtype, 1, count);
            }
          }
        }
      });
}

void Rope(const RopeArgs& args, KernelContext& context) {
  CH_CHECK(args.head_dim % 2 == 0)
      << "rope kernel: odd head dim " << args.head_dim;
  internal::DispatchFloat(args.dtype, "rope", [&](auto zero) HWY_ATTR {
    RopeAs<decltype(zero)>(args, context);
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace crosshatch
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace crosshatch {

CH_CPU_KERNEL(Attention)
CH_CPU_KERNEL(AttentionBackward)
CH_CPU_KERNEL(Rope)

namespace internal {

int64_t CpuAttentionWorkspaceBytes(const AttentionArgs& args) {
  return CutForward(args).parts * ForwardElements(args) *
         SizeOf(StatisticsDType(args.dtype));
}

int64_t CpuAttentionBackwardWorkspaceBytes(const AttentionBackwardArgs& args) {
  return BackwardParts(args.forward) * BackwardElements(args.forward) *
         SizeOf(StatisticsDType(args.forward.dtype));
}

}  // namespace internal
}  // namespace crosshatch
#endif  // HWY_ONCE
