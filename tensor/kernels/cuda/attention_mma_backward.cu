// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "crosshatch/tensor/kernels/cuda/async_copy.cuh"
#include "crosshatch/tensor/kernels/cuda/attention_dq.cuh"
#include "crosshatch/tensor/kernels/cuda/attention_mma.cuh"
#include "crosshatch/tensor/kernels/cuda/attention_mma.h"
#include "crosshatch/tensor/kernels/cuda/attention_mma_scores.cuh"
#include "crosshatch/tensor/kernels/cuda/attention_scores.cuh"
#include "crosshatch/tensor/kernels/cuda/attention_softmax.cuh"
#include "crosshatch/tensor/kernels/cuda/block_reduce.cuh"
#include "crosshatch/tensor/kernels/cuda/element.cuh"

namespace crosshatch::internal::attention {
namespace {

/// In the workspace (MmaBackwardLayout).
struct DqSums {
  float* sums;
  /// The number of blocks that have started, then for each warp and tile of
  /// queries that of blocks which have added to dq.
  uint32_t* counts;
  int64_t num_counts;
  int tiles;  // Of a head.
};

/// Computes delta[b, h, t] = the product of out and its gradient; the
/// MaskShifts follow in memory, if any. Sets dq of queries without keys, and
/// the counts, to 0.
template <DType kDType, int kCols>
__global__ void __launch_bounds__(256)
    MmaDeltaKernel(AttentionBackwardArgs args, float* delta, DqSums dq) {
  constexpr int kLanes = kCols / 8;  // Of a row, each with eight columns.
  constexpr int kRows = kWarpThreads / kLanes;
  for (int64_t i = GlobalThread(); i < dq.num_counts; i += GlobalThreads()) {
    StoreGlobal(dq.counts + i, uint32_t{0});
  }
  const AttentionArgs& forward = args.forward;
  const int64_t rows = forward.batch * forward.q_heads * forward.q_len;
  const int d = LaneOfWarp() % kLanes * 8;
  const int count = static_cast<int>(forward.head_dim) - d;
  const int64_t step = GlobalThreads() / kWarpThreads * kRows;
  for (int64_t first = GlobalThread() / kWarpThreads * kRows; first < rows;
       first += step) {
    const int64_t row = first + LaneOfWarp() / kLanes;
    const int64_t t = row % forward.q_len;
    const int64_t h = row / forward.q_len % forward.q_heads;
    const int64_t b = row / forward.q_len / forward.q_heads;
    float sum = 0;
    if (row < rows) {
      const auto load = [&](const auto& x) {
        const uint16_t* const data = static_cast<const uint16_t*>(x.data) +
                                     b * x.batch_stride + h * x.head_stride;
        return LoadEight(data + t * x.time_stride + d, count,
                         IsOfVectors(data, x.time_stride));
      };
      const Eight out = load(forward.out);
      const Eight grad = load(args.grad);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const auto of = [i](const Eight& x) {
          return FromStored<float, kDType>(
              static_cast<uint16_t>(x.values[i / 2] >> i % 2 * 16));
        };
        sum += of(out) * of(grad);
      }
      if (RunOf(forward, b, t).empty()) {
        uint16_t* const data = static_cast<uint16_t*>(args.dq.data) +
                               b * args.dq.batch_stride +
                               h * args.dq.head_stride;
        StoreEight(data + t * args.dq.time_stride + d, Eight{}, count,
                   IsOfVectors(data, args.dq.time_stride));
      }
    }
#pragma unroll
    for (int lanes = kLanes / 2; lanes > 0; lanes /= 2) {
      sum += __shfl_xor_sync(kFullWarp, sum, lanes);
    }
    if (d == 0 && row < rows) StoreGlobal(delta + row, sum);
    if (!HasShifts(forward)) continue;
    for (int64_t r = first; r < first + kRows && r < rows; ++r) {
      const float shift = MaskShift<float>(
          forward, r / forward.q_len / forward.q_heads,
          r / forward.q_len % forward.q_heads, r % forward.q_len);
      if (LaneOfWarp() == 0) StoreGlobal(delta + rows + r, shift);
    }
  }
}

/// A block has the keys and values of kKeys keys, and iterates over tiles of
/// queries. A warp has the scores of 16 of the keys, the gradients of kWidth
/// columns of those keys and of their values, and a quarter of the tile's dq.
template <int kCols>
struct BackwardTiles {
  static constexpr int kColWarps = kCols > 128 ? 2 : 1;
  static constexpr int kKeys = MmaKeysOf(kCols);
  static_assert(kKeys * kColWarps == kMmaRows * kMmaWarps);
  static constexpr int kWidth = kCols / kColWarps;
  /// Queries of a warp's scores.
  static constexpr int kQueries = kMmaQueries / kColWarps;
  /// Tiles of queries, the one in use and, if there is room, the next.
  static constexpr int kStages = kCols > 128 ? 1 : 2;

  TileRow<kCols> keys[kKeys];
  TileRow<kCols> values[kKeys];
  TileRow<kCols> queries[kStages][kMmaQueries];
  TileRow<kCols> grads[kStages][kMmaQueries];
  // Of each key: probabilities, and gradients of scores.
  TileRow<kMmaQueries> weights[kKeys];
  TileRow<kMmaQueries> dots[kKeys];
  OfQuery<float> of_queries[kMmaQueries];
};

/// A tile of queries of a head, and the blocks of keys that it sees.
struct QueryTile {
  int head;
  int query;
  int first_block;
  int last_block;
  // The keys of the query of the lane's number.
  int begin;
  int end;
};

/// Returns the log-sum-exp for exponentials of base 2, +inf for a query without
/// keys: all of its probabilities are then 0.
__device__ inline OfQuery<float> OfQueryInBits(const AttentionArgs& args,
                                               const float* deltas,
                                               int64_t batch, int64_t head,
                                               int64_t query) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  OfQuery<float> of = OfQueryAt(args, deltas, batch, head, query);
  of.logsumexp = query >= args.q_len || of.logsumexp == -kInfinity
                     ? kInfinity
                     : of.logsumexp * kLog2E;
  return of;
}

template <DType kDType, int kCols, bool kPlain>
__global__ void __launch_bounds__(kMmaThreads, kMmaBlocks)
    MmaGradientKernel(AttentionBackwardArgs args, const float* deltas,
                      DqSums dq) {
  using Tiles = BackwardTiles<kCols>;
  using Part = DqPart<kCols>;
  constexpr int kKeys = Tiles::kKeys;
  constexpr int kQueries = Tiles::kQueries;
  CH_DYNAMIC_SHARED(shared, Tiles);
  const AttentionArgs& forward = args.forward;
  const int dim = kPlain ? kCols : static_cast<int>(forward.head_dim);
  const int q_len = static_cast<int>(forward.q_len);
  const auto heads = static_cast<unsigned>(forward.batch * forward.kv_heads);
  const unsigned number = NumberOfBlock(dq.counts);
  const int block = static_cast<int>(number / heads);
  const auto kv_heads = static_cast<unsigned>(forward.kv_heads);
  const auto batch = static_cast<int>(number % heads / kv_heads);
  const auto kv_head = static_cast<int>(number % heads % kv_heads);
  const int first_key = block * kKeys;
  RowCopier<kCols, kPlain>(HeadOf(forward.k, batch, kv_head, forward.kv_len),
                           dim)
      .template Start<kKeys>(shared.keys, first_key);
  RowCopier<kCols, kPlain>(HeadOf(forward.v, batch, kv_head, forward.kv_len),
                           dim)
      .template Start<kKeys>(shared.values, first_key);
  const int own = Warp() / Tiles::kColWarps * kMmaRows;  // Keys in the block.
  const int key = first_key + own;
  const int col = Warp() % Tiles::kColWarps * Tiles::kWidth;
  const int first_col = Warp() % Tiles::kColWarps * kQueries;  // Of scores.
  const Dropped<float> dropped(forward);
  const auto scale = static_cast<float>(forward.scale);
  const float unit_log2e = (kPlain ? scale : 1.0f) * kLog2E;
  const auto group = static_cast<int>(forward.q_heads / forward.kv_heads);
  const int first_head = kv_head * group;
  const auto first_query =
      static_cast<int>(FirstQuery(forward, first_key, kMmaQueries));
  const auto end_query = static_cast<int>(
      EndQuery(forward, SmallerOf<int64_t>(first_key + kKeys, forward.kv_len)));

  // Returns the next tile that sees keys of the block; of head first_head +
  // group after the last.
  const auto after = [&](QueryTile tile) {
    for (;;) {
      tile.query += kMmaQueries;
      if (tile.query >= end_query) {
        tile.query = first_query;
        if (++tile.head == first_head + group) return tile;
        if (tile.query >= end_query) continue;
      }
      const KeyRun run = RunOf(forward, batch, tile.query + LaneOfWarp());
      tile.begin = static_cast<int>(run.begin);
      tile.end = static_cast<int>(run.end);
      const bool is_empty = tile.begin >= tile.end;
      const int begin =
          WarpReduce(is_empty ? std::numeric_limits<int>::max() : tile.begin,
                     [](int a, int b) { return SmallerOf(a, b); });
      const int end = WarpReduce(is_empty ? 0 : tile.end,
                                 [](int a, int b) { return LargerOf(a, b); });
      if (begin >= first_key + kKeys || end <= first_key) continue;
      tile.first_block = begin / kKeys;
      tile.last_block = (end - 1) / kKeys;
      return tile;
    }
  };
  const auto is_last = [&](const QueryTile& tile) {
    return tile.head == first_head + group;
  };
  const auto start = [&](const QueryTile& tile, int stage) {
    RowCopier<kCols, kPlain>(HeadOf(forward.q, batch, tile.head, q_len), dim)
        .template Start<kMmaQueries>(shared.queries[stage], tile.query);
    RowCopier<kCols, kPlain>(HeadOf(args.grad, batch, tile.head, q_len), dim)
        .template Start<kMmaQueries>(shared.grads[stage], tile.query);
  };
  const auto of_query = [&](const QueryTile& tile) {
    OfQuery<float> of = {};
    if (threadIdx.x < kMmaQueries && !is_last(tile)) {
      of = OfQueryInBits(forward, deltas, batch, tile.head,
                         tile.query + static_cast<int>(threadIdx.x));
    }
    return of;
  };
  const auto store_of = [&](const OfQuery<float>& of) {
    if (threadIdx.x < kMmaQueries) shared.of_queries[threadIdx.x] = of;
  };

  MmaSums<Tiles::kWidth> dk = {};
  MmaSums<Tiles::kWidth> dv = {};
  QueryTile tile = {first_head, first_query - kMmaQueries, 0, 0, 0, 0};
  tile = after(tile);
  if (!is_last(tile)) start(tile, 0);
  CommitCopies();
  store_of(of_query(tile));
  for (int stage = 0; !is_last(tile); stage ^= Tiles::kStages - 1) {
    const QueryTile next = after(tile);
    WaitForCopies<0>();
    // The tile is there, and no warp reads the previous one.
    __syncthreads();
    if constexpr (Tiles::kStages > 1) {
      if (!is_last(next)) start(next, stage ^ 1);
      CommitCopies();
    }
    const TileRow<kCols>* const queries = shared.queries[stage];
    const TileRow<kCols>* const grads = shared.grads[stage];
    const bool is_seen =
        __any_sync(kFullWarp, tile.begin < tile.end &&
                                  tile.begin < key + kMmaRows &&
                                  key < tile.end) != 0;
    const bool is_whole =
        __all_sync(kFullWarp,
                   tile.query + LaneOfWarp() >= q_len ||
                       (tile.begin <= key && key + kMmaRows <= tile.end)) != 0;
    uint32_t shown = ~0u;
    bool is_hidden = false;  // The whole block, by the mask.
    const KeysByQueries pair_at = {key, tile.query + first_col};
    if (!kPlain || !is_whole) {
      shown =
          ShownByColumns<kQueries>(tile.begin - key, tile.end - key, first_col);
    }
    if constexpr (!kPlain) {
      if (forward.mask.data != nullptr) {
        shown =
            ShownByMask<kQueries>(forward, shown, batch, tile.head, pair_at);
        is_hidden = !BlockAny(shown != 0);
      }
    }
    MmaSums<kQueries> weights = {};
    MmaSums<kQueries> dots = {};
    __syncwarp();
    if (is_seen && !is_hidden) {
      AddProducts<kDType, kCols, kQueries>(shared.keys + own,
                                           queries + first_col, dim, weights);
      AddProducts<kDType, kCols, kQueries>(shared.values + own,
                                           grads + first_col, dim, dots);
      uint32_t kept = shown;
      if constexpr (!kPlain) {
        MakeScores<kQueries>(
            forward, shown, batch, tile.head, pair_at,
            [&](int n, int i) {
              return shared.of_queries[first_col + ColOf(n, i)].shift;
            },
            weights);
        kept = KeptOf<kQueries>(forward, dropped, shown, batch, tile.head,
                                pair_at);
      }
#pragma unroll
      for (int n = 0; n < kQueries / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const OfQuery<float>& of = shared.of_queries[first_col + ColOf(n, i)];
          float p = Exp2(weights[n][i] * unit_log2e - of.logsumexp);
          if ((!kPlain || !is_whole) && !Has(shown, n, i)) p = 0.0f;
          float dot = dots[n][i];
          weights[n][i] = p;
          if constexpr (!kPlain) {
            const bool is_kept = Has(kept, n, i);
            dot = is_kept ? dot * dropped.factor() : 0.0f;
            if (!is_kept) weights[n][i] = 0.0f;
          }
          dots[n][i] = p == 0.0f ? 0.0f : p * (dot - of.delta);
        }
      }
    }
#pragma unroll
    for (int n = 0; n < kQueries / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        const int eight = first_col / 8 + n;
        const int pair = LaneOfWarp() % 4;
        shared.weights[own + RowOf(i)].eights[eight].values[pair] =
            PairOf<kDType>(weights[n][i], weights[n][i + 1]);
        shared.dots[own + RowOf(i)].eights[eight].values[pair] =
            PairOf<kDType>(dots[n][i], dots[n][i + 1]);
      }
    }
    // All weights and dots are there, and no warp reads of_queries.
    __syncthreads();
    const OfQuery<float> next_of = of_query(next);
    __syncwarp();
    if (is_seen && !is_hidden) {
      AddTiles<kDType, Tiles::kWidth, kMmaQueries>(shared.weights + own, grads,
                                                   col, dim, dv);
      AddTiles<kDType, Tiles::kWidth, kMmaQueries>(shared.dots + own, queries,
                                                   col, dim, dk);
    }
    store_of(next_of);
    const int64_t part = ((batch * forward.q_heads + tile.head) * dq.tiles +
                          tile.query / kMmaQueries) *
                             kMmaWarps +
                         Warp();
    float* const sums_of_part = dq.sums + part * Part::kFloats;
    const auto position = static_cast<uint32_t>(block - tile.first_block);
    const bool is_end = block == tile.last_block;
#pragma unroll
    for (int chunk = 0; chunk < Part::kWidth / Part::kChunk; ++chunk) {
      const int from = Part::col() + chunk * Part::kChunk;
      MmaSums<Part::kChunk> sums = {};
      __syncwarp();
      if (!is_hidden) {
        AddTransposed<kDType, Part::kChunk, kKeys>(
            shared.dots, Part::query(), shared.keys, from, dim, sums);
      }
      if (position > 0) {
        if (chunk == 0) AwaitCount(dq.counts + 1 + part, position);
        Part::Add(sums_of_part, chunk, sums);
      }
      if (is_end) {
        StoreDq<kDType, kPlain, Part::kChunk>(
            sums, scale, args.dq, batch, tile.head, tile.query + Part::query(),
            q_len, from, dim);
      } else {
        Part::Store(sums_of_part, chunk, sums);
      }
    }
    if (!is_end) PostCount(dq.counts + 1 + part, position + 1);
    if constexpr (Tiles::kStages == 1) {
      // No warp reads the tile; the next one overwrites it.
      __syncthreads();
      if (!is_last(next)) start(next, 0);
      CommitCopies();
    }
    tile = next;
  }
  WaitForCopies<0>();
  // No warp reads keys and values; their gradients overwrite them.
  __syncthreads();
  const float factor = kPlain ? 1.0f : dropped.factor();
  StoreRows<kDType, Tiles::kWidth>(shared.keys + own, col, dk, {scale, scale},
                                   args.dk, batch, kv_head, key, forward.kv_len,
                                   dim);
  StoreRows<kDType, Tiles::kWidth>(shared.values + own, col, dv,
                                   {factor, factor}, args.dv, batch, kv_head,
                                   key, forward.kv_len, dim);
}

}  // namespace

void MmaAttentionBackward(const AttentionBackwardArgs& args,
                          KernelContext& context) {
  const AttentionArgs& forward = args.forward;
  const MmaBackwardLayout layout(forward);
  auto* const memory = static_cast<char*>(args.workspace);
  auto* const deltas = reinterpret_cast<float*>(memory);
  const int64_t heads = forward.batch * forward.q_heads;
  const DqSums dq = {reinterpret_cast<float*>(memory + layout.sums_offset),
                     reinterpret_cast<uint32_t*>(memory + layout.counts_offset),
                     heads * layout.query_tiles * kMmaWarps + 1,
                     static_cast<int>(layout.query_tiles)};
  DispatchMma(forward, IsPlain(args), [&](auto dtype, auto cols, auto plain) {
    constexpr DType kDType = decltype(dtype)::value;
    constexpr int kCols = decltype(cols)::value;
    LaunchKernel("attention_mma_delta", &MmaDeltaKernel<kDType, kCols>,
                 GeometryOfItems(
                     std::max<int64_t>(1, heads * forward.q_len * (kCols / 8))),
                 context, args, deltas, dq);
    LaunchGeometry geometry = MmaGeometry(forward, forward.kv_heads,
                                          forward.kv_len, MmaKeysOf(kCols));
    geometry.shared_bytes = sizeof(BackwardTiles<kCols>);
    LaunchKernel("attention_mma_gradients",
                 &MmaGradientKernel<kDType, kCols, decltype(plain)::value>,
                 geometry, context, args, static_cast<const float*>(deltas),
                 dq);
  });
}

}  // namespace crosshatch::internal::attention
