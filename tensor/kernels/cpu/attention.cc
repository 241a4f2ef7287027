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

void Forward(const AttentionArgs& args, KernelContext& context) {
  internal::DispatchFloat(args.dtype, "attention", [&](auto zero) HWY_ATTR {
    ForwardAs<decltype(zero)>(args, context);
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace crosshatch
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace crosshatch {

HWY_EXPORT(Forward);

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

}  // namespace internal
}  // namespace crosshatch
#endif  // HWY_ONCE
