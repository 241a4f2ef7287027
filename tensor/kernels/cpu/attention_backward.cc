// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/kernels/cpu/targets.h"
// Before the headers that are compiled once for each target.
#include <algorithm>
#include <cstdint>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/kernels/cpu/entry_points.h"
#include "crosshatch/tensor/kernels/cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/kernels/cpu/attention_backward.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "crosshatch/tensor/kernels/cpu/attention_tiles-inl.h"
#include "hwy/highway.h"

#ifndef CROSSHATCH_TENSOR_KERNELS_CPU_ATTENTION_BACKWARD_ONCE_
#define CROSSHATCH_TENSOR_KERNELS_CPU_ATTENTION_BACKWARD_ONCE_
namespace crosshatch::internal {
namespace {

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
#endif  // CROSSHATCH_TENSOR_KERNELS_CPU_ATTENTION_BACKWARD_ONCE_

HWY_BEFORE_NAMESPACE();
namespace crosshatch {
namespace HWY_NAMESPACE {
namespace {

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

HWY_EXPORT(Backward);

namespace internal {

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
