// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "crosshatch/tensor/kernels/cuda/async_copy.cuh"
#include "crosshatch/tensor/kernels/cuda/attention_mma.cuh"
#include "crosshatch/tensor/kernels/cuda/attention_mma.h"
#include "crosshatch/tensor/kernels/cuda/attention_mma_scores.cuh"
#include "crosshatch/tensor/kernels/cuda/attention_scores.cuh"
#include "crosshatch/tensor/kernels/cuda/attention_softmax.cuh"
#include "crosshatch/tensor/kernels/cuda/block_reduce.cuh"
#include "crosshatch/tensor/kernels/cuda/element.cuh"

namespace crosshatch::internal::attention {
namespace {

/// The rows of a block in shared memory: keys, values, and queries. Registers
/// keep the queries unless their heads are too wide for that; keys then
/// overwrite them.
template <int kCols>
struct ForwardTiles {
  static constexpr bool kKeepsQueries = kCols > 128;
  static constexpr int kKeys = kKeepsQueries ? 32 : 64;
  static constexpr int kFirstQuery = kKeepsQueries ? 2 * kKeys : 0;
  static constexpr int kRows = 2 * kKeys + (kKeepsQueries ? kMmaBlockRows : 0);
  static_assert(kRows >= kFirstQuery + kMmaBlockRows);
  static constexpr int kBytes = kRows * int{sizeof(TileRow<kCols>)};
};

/// A block has a tile of keys and one of values. Values are copied while the
/// products with keys are computed, and the next keys during the products with
/// values.
template <DType kDType, int kCols, bool kPlain>
__global__ void __launch_bounds__(kMmaThreads, kMmaBlocks)
    MmaAttentionKernel(AttentionArgs args) {
  using Tiles = ForwardTiles<kCols>;
  constexpr int kKeys = Tiles::kKeys;
  CH_DYNAMIC_SHARED(rows, TileRow<kCols>[Tiles::kRows]);
  TileRow<kCols>* const keys = rows;
  TileRow<kCols>* const values = rows + kKeys;
  const Where where = WhereOf(args.q_len, args.q_heads, kMmaRows, kCols);
  const int dim = kPlain ? kCols : static_cast<int>(args.head_dim);
  const int64_t kv_head = KvHead(args, where.head);
  const RowCopier<kCols, kPlain> k(
      HeadOf(args.k, where.batch, kv_head, args.kv_len), dim);
  const RowCopier<kCols, kPlain> v(
      HeadOf(args.v, where.batch, kv_head, args.kv_len), dim);
  const Dropped<float> dropped(args);
  const int64_t row = where.row + Warp() * kMmaRows;  // The warp's first row.
  TileRow<kCols>* const own = rows + Tiles::kFirstQuery + Warp() * kMmaRows;
  RowCopier<kCols, kPlain>(HeadOf(args.q, where.batch, where.head, args.q_len),
                           dim)
      .template Start<kMmaBlockRows>(rows + Tiles::kFirstQuery,
                                     static_cast<int>(where.row));
  CommitCopies();
  const KeyRun runs[2] = {RunOf(args, where.batch, row + RowOf(0)),
                          RunOf(args, where.batch, row + RowOf(2))};
  const SeenKeys of_warp = SeenByRows(args, row, runs);
  float shifts[2] = {};
  if constexpr (!kPlain) {
    for (int r = 0; HasShifts(args) && r < kMmaRows; ++r) {
      const float shift =
          MaskShift<float>(args, where.batch, where.head, row + r);
      if (r == RowOf(0)) shifts[0] = shift;
      if (r == RowOf(2)) shifts[1] = shift;
    }
  }
  const KeyRun all =
      RunOfRows(args, where.batch, where.row, kMmaBlockRows, kKeys);
  const int end = static_cast<int>(all.end);
  uint32_t next_shown = 0;
  // Returns the first tile from `key` on that the mask does not hide.
  const auto tile_from = [&](int key) {
    if constexpr (!kPlain) {
      for (; key < end; key += kKeys) {
        next_shown =
            ShownByMask<kKeys>(args, ShownByRuns<kKeys>(runs, key), where.batch,
                               where.head, QueriesByKeys{row, key});
        if (args.mask.data == nullptr || BlockAny(next_shown != 0)) break;
      }
    }
    return key;
  };
  int key = tile_from(static_cast<int>(all.begin));
  MmaLeft<kCols> queries;
  WaitForCopies<0>();
  __syncthreads();
  if constexpr (!Tiles::kKeepsQueries) {
    LoadLefts(own, dim, queries);
    // Wait until all queries are read; keys overwrite them.
    __syncthreads();
  }
  if (key < end) k.template Start<kKeys>(keys, key);
  CommitCopies();
  const auto scale = static_cast<float>(args.scale);
  const float unit = kPlain ? scale : 1.0f;
  RowSoftmax softmax;
  MmaSums<kCols> sums = {};
  while (key < end) {
    const uint32_t shown = next_shown;
    const bool is_seen = of_warp.SeesAny(key, kKeys);
    WaitForCopies<0>();
    // The keys are there, and no warp reads the previous values.
    __syncthreads();
    v.template Start<kKeys>(values, key);
    CommitCopies();
    MmaSums<kKeys> weights = {};
    __syncwarp();
    if (is_seen) {
      if constexpr (Tiles::kKeepsQueries) {
        AddProducts<kDType, kCols, kKeys>(own, keys, dim, weights);
      } else {
        AddProducts<kDType, kCols, kKeys>(queries, keys, dim, weights);
      }
    }
    const int next = tile_from(key + kKeys);
    WaitForCopies<0>();
    // The values are there, and no warp reads the keys.
    __syncthreads();
    if (next < end) k.template Start<kKeys>(keys, next);
    CommitCopies();
    __syncwarp();
    if (is_seen) {
      uint32_t kept = 0;
      if constexpr (kPlain) {
        if (!of_warp.SeesAll(key, kKeys)) HideOthers<kKeys>(runs, key, weights);
      } else {
        const QueriesByKeys pair_at = {row, key};
        MakeScores<kKeys>(
            args, shown, where.batch, where.head, pair_at,
            [&](int, int i) { return shifts[i / 2]; }, weights);
        kept = KeptOf<kKeys>(args, dropped, shown, where.batch, where.head,
                             pair_at);
      }
      softmax.Add<kKeys, kCols>(unit * kLog2E, weights, sums);
      if constexpr (!kPlain) ZeroOthers<kKeys>(kept, weights);
      AddWeighted<kDType, kCols, kKeys>(weights, values, dim, sums);
    }
    key = next;
  }
  float factors[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float max = softmax.max[half];
    const float sum =
        OfRow(softmax.sum[half], [](float a, float b) { return a + b; });
    const bool is_nothing = max == -std::numeric_limits<float>::infinity();
    factors[half] =
        is_nothing ? 0.0f : (kPlain ? 1.0f : dropped.factor()) / sum;
    const int64_t t = row + RowOf(2 * half);
    if (LaneOfWarp() % 4 == 0 && t < args.q_len) {
      StoreElement(args.logsumexp, DType::kFloat32,
                   (where.batch * args.q_heads + where.head) * args.q_len + t,
                   is_nothing ? max : max * unit + std::log(sum));
    }
  }
  // Where the queries were, which no other warp reads: all have passed the last
  // products with keys.
  StoreRows<kDType, kCols>(own, 0, sums, factors, args.out, where.batch,
                           where.head, row, args.q_len, dim);
}

}  // namespace

void MmaAttention(const AttentionArgs& args, KernelContext& context) {
  LaunchGeometry geometry =
      MmaGeometry(args, args.q_heads, args.q_len, kMmaBlockRows);
  DispatchMma(args, IsPlain(args), [&](auto dtype, auto cols, auto plain) {
    constexpr int kCols = decltype(cols)::value;
    geometry.shared_bytes = ForwardTiles<kCols>::kBytes;
    LaunchKernel("attention_mma",
                 &MmaAttentionKernel<decltype(dtype)::value, kCols,
                                     decltype(plain)::value>,
                 geometry, context, args);
  });
}

}  // namespace crosshatch::internal::attention
