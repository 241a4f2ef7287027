// SPDX-License-Identifier: Apache-2.0
// Attention by tiles of 32 queries and 32 keys. A block takes 32 rows, of
// queries or in the gradients by keys of keys, and goes over the others in
// tiles of 32, one for each lane of its warps: a lane has the scores of its
// warp's four rows with its own column. What a tile adds to the results goes
// through shared memory, and there a lane has every 32nd of up to kCols columns
// of the head; other columns are other blocks'.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/kernels/attention_keys.h"
#include "crosshatch/tensor/kernels/cuda/block_reduce.cuh"
#include "crosshatch/tensor/kernels/cuda/element.cuh"
#include "crosshatch/tensor/kernels/cuda/entry_points.h"
#include "crosshatch/tensor/kernels/cuda/global_index.cuh"

namespace crosshatch::internal {
namespace {

constexpr int kTile = 32;
constexpr int kMostWarps = 8;
constexpr int kRows = kTile / kMostWarps;  // Of a warp.

/// Columns of the results that a block makes.
template <typename C>
constexpr int kCols = sizeof(C) == 8 ? 64 : 128;

template <typename C>
using ScoreTile = C[kTile][kTile + 1];
template <typename C>
using ValueTile = C[kTile][kCols<C>];

/// One head of a [B, T, H, D] tensor.
struct Head {
  const void* data;
  int64_t first;
  int64_t time_stride;
  int64_t length;
};
template <typename Heads>
__device__ Head HeadOf(const Heads& x, int64_t batch, int64_t head,
                       int64_t length) {
  return {x.data, batch * x.batch_stride + head * x.head_stride, x.time_stride,
          length};
}

/// Which block this is: the tile of rows, the head and the columns.
struct Where {
  int64_t row;
  int64_t batch;
  int64_t head;
  int64_t col;
};
__device__ Where WhereOf(int64_t rows, int64_t heads, int cols) {
  const int64_t of_block = int64_t{blockDim.x} / kWarpThreads * kRows;
  const int64_t tiles = (rows + of_block - 1) / of_block;
  const int64_t block = blockIdx.x;
  return {block % tiles * of_block, block / tiles / heads,
          block / tiles % heads, int64_t{blockIdx.y} * cols};
}

__device__ __forceinline__ int Warp() {
  return static_cast<int>(threadIdx.x) / kWarpThreads;
}
__device__ __forceinline__ int Warps() {
  return static_cast<int>(blockDim.x) / kWarpThreads;
}
__device__ __forceinline__ int LaneOfWarp() {
  return static_cast<int>(threadIdx.x) % kWarpThreads;
}

/// Rows [row, row + 32) and columns [col, col + 32) of a head; zeros outside.
template <typename C>
__device__ void LoadChunk(ScoreTile<C>& tile, const Head& head, DType dtype,
                          int64_t row, int64_t col, int64_t dim) {
  for (int r = Warp(); r < kTile; r += Warps()) {
    const int64_t t = row + r;
    const int64_t d = col + LaneOfWarp();
    tile[r][LaneOfWarp()] =
        t < head.length && d < dim
            ? LoadElement<C>(head.data, dtype,
                             head.first + t * head.time_stride + d)
            : C(0);
  }
}

/// As LoadChunk, kCols columns.
template <typename C>
__device__ void LoadValues(ValueTile<C>& tile, const Head& head, DType dtype,
                           int64_t row, int64_t col, int64_t dim) {
  for (int r = Warp(); r < kTile; r += Warps()) {
    const int64_t t = row + r;
    for (int c = LaneOfWarp(); c < kCols<C>; c += kWarpThreads) {
      const int64_t d = col + c;
      tile[r][c] = t < head.length && d < dim
                       ? LoadElement<C>(head.data, dtype,
                                        head.first + t * head.time_stride + d)
                       : C(0);
    }
  }
}

/// The tiles that blocks share.
template <typename C>
struct Shared {
  ScoreTile<C> of_rows;
  ScoreTile<C> of_cols;
  ScoreTile<C> weights;  // Row, column.
  ValueTile<C> values;
};

/// dots[r] = the products of the warp's rows of `rows` with the lane's of
/// `cols`, over the whole head.
template <typename C>
__device__ void Dots(Shared<C>& shared, const Head& rows, int64_t row,
                     const Head& cols, int64_t col, DType dtype, int64_t dim,
                     C (&dots)[kRows]) {
#pragma unroll
  for (int r = 0; r < kRows; ++r) dots[r] = C(0);
  for (int64_t d = 0; d < dim; d += kTile) {
    LoadChunk(shared.of_rows, rows, dtype, row, d, dim);
    LoadChunk(shared.of_cols, cols, dtype, col, d, dim);
    __syncthreads();
    for (int i = 0; i < kTile; ++i) {
      const C x = shared.of_cols[LaneOfWarp()][i];
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        dots[r] += shared.of_rows[Warp() * kRows + r][i] * x;
      }
    }
    __syncthreads();
  }
}

template <typename C>
using Sums = C[kRows][kCols<C> / kWarpThreads];

/// sums[r] += weights[r] times the 32 rows of `values` from `first` on.
template <typename C>
__device__ void AddWeighted(Shared<C>& shared, const C (&weights)[kRows],
                            const Head& values, int64_t first, DType dtype,
                            int64_t col, int64_t dim, Sums<C>& sums) {
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    shared.weights[Warp() * kRows + r][LaneOfWarp()] = weights[r];
  }
  LoadValues(shared.values, values, dtype, first, col, dim);
  __syncthreads();
  for (int j = 0; j < kTile; ++j) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const C weight = shared.weights[Warp() * kRows + r][j];
#pragma unroll
      for (int i = 0; i < kCols<C> / kWarpThreads; ++i) {
        sums[r][i] +=
            weight * shared.values[j][LaneOfWarp() + i * kWarpThreads];
      }
    }
  }
  __syncthreads();
}

/// Stores the warp's rows, each times its factor.
template <typename C>
__device__ void StoreSums(const HeadsOutput& out, DType dtype,
                          const Where& where, int64_t length, int64_t dim,
                          const C (&factors)[kRows], const Sums<C>& sums) {
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int64_t t = where.row + Warp() * kRows + r;
    if (t >= length) continue;
    const int64_t to = where.batch * out.batch_stride +
                       where.head * out.head_stride + t * out.time_stride;
#pragma unroll
    for (int i = 0; i < kCols<C> / kWarpThreads; ++i) {
      const int64_t d = where.col + LaneOfWarp() + i * kWarpThreads;
      if (d < dim) {
        StoreElement(out.data, dtype, to + d, sums[r][i] * factors[r]);
      }
    }
  }
}

/// What a query sees but for a bool mask; nothing beyond the last one.
__device__ KeyRun RunOf(const AttentionArgs& args, int64_t batch,
                        int64_t query) {
  if (query >= args.q_len) return {0, 0};
  KeyRun range = {0, args.kv_len};
  if (args.key_ranges != nullptr) {
    const int32_t* const at = KeyRangeOf(args, batch, query);
    range = {LoadGlobal<int32_t>(at), LoadGlobal<int32_t>(at + 1)};
  }
  return KeysOf(args, query, range);
}

/// The key tiles that any of the block's queries, from `row` on, sees: begin is
/// a multiple of kTile. The same on all lanes.
__device__ KeyRun RunOfRows(const AttentionArgs& args, int64_t batch,
                            int64_t row) {
  const int lane = LaneOfWarp();
  KeyRun run = {args.kv_len, 0};
  if (lane < Warps() * kRows) {
    const KeyRun own = RunOf(args, batch, row + lane);
    if (!own.empty()) run = own;
  }
  run.begin =
      WarpReduce(run.begin, [](int64_t a, int64_t b) { return a < b ? a : b; });
  run.end =
      WarpReduce(run.end, [](int64_t a, int64_t b) { return a < b ? b : a; });
  run.begin = run.begin / kTile * kTile;
  return run;
}

/// Whether a query that sees `run` sees any of the block's keys from `row` on,
/// for any lane's query. The same on all lanes.
__device__ bool AnySees(const KeyRun& run, int64_t row) {
  const bool sees =
      !run.empty() && run.begin < row + Warps() * kRows && run.end > row;
  return __any_sync(kFullWarp, sees ? 1 : 0) != 0;
}

/// Whether any thread of the block has a `value`. All of them call it.
__device__ bool BlockAny(bool value) {
  CH_SHARED(of_warps, int[kMostWarps]);
  const int any = __any_sync(kFullWarp, value ? 1 : 0);
  if (LaneOfWarp() == 0) of_warps[Warp()] = any;
  __syncthreads();
  int of_block = 0;
  for (int warp = 0; warp < Warps(); ++warp) of_block |= of_warps[warp];
  // Before a next call writes there.
  __syncthreads();
  return of_block != 0;
}

/// What the mask, which is there, has for a query and a key.
template <typename C>
__device__ C MaskOf(const AttentionArgs& args, int64_t batch, int64_t head,
                    int64_t query, int64_t key) {
  const int64_t* const strides = args.mask.strides;
  const C mask = LoadElement<C>(args.mask.data, args.mask.dtype,
                                batch * strides[0] + head * strides[1] +
                                    query * strides[2] + key * strides[3]);
  if (args.mask.dtype != DType::kBool) return mask;
  return mask == C(0) ? -std::numeric_limits<C>::infinity() : C(0);
}

/// Whether the mask, if any, shows a key of `run` to the query.
template <typename C>
__device__ bool Shows(const AttentionArgs& args, const KeyRun& run,
                      int64_t batch, int64_t head, int64_t query, int64_t key) {
  return key >= run.begin && key < run.end &&
         (args.mask.data == nullptr ||
          MaskOf<C>(args, batch, head, query, key) !=
              -std::numeric_limits<C>::infinity());
}

/// Whether any of the block's queries sees any of the 32 keys from `key` on,
/// where there is a mask; else true. All threads call it.
template <typename C>
__device__ bool TileShows(const AttentionArgs& args,
                          const KeyRun (&runs)[kRows], const Where& where,
                          int64_t key) {
  if (args.mask.data == nullptr) return true;
  bool any = false;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    any = any || Shows<C>(args, runs[r], where.batch, where.head,
                          where.row + Warp() * kRows + r, key + LaneOfWarp());
  }
  return BlockAny(any);
}

CH_HOST_DEVICE bool HasShifts(const AttentionArgs& args) {
  return args.mask.data != nullptr && args.mask.dtype != DType::kBool;
}

/// What the scores of a query are kept less by, made by a warp.
template <typename C>
__device__ C MaskShift(const AttentionArgs& args, int64_t batch, int64_t head,
                       int64_t query) {
  constexpr C kNothing = -std::numeric_limits<C>::infinity();
  if (!HasShifts(args)) return C(0);
  const KeyRun run = RunOf(args, batch, query);
  C largest = kNothing;
  for (int64_t key = run.begin + LaneOfWarp(); key < run.end;
       key += kWarpThreads) {
    largest = LargerOf(largest, MaskOf<C>(args, batch, head, query, key));
  }
  largest = WarpReduce(largest, [](C a, C b) { return LargerOf(a, b); });
  return largest == kNothing ? C(0) : largest;
}

/// The score of a query and a key of `run`, which it sees, from the product of
/// the two; -inf if it does not see it.
/// \param shift MaskShift of the query
template <typename C>
__device__ C ScoreOf(const AttentionArgs& args, const KeyRun& run,
                     int64_t batch, int64_t head, int64_t query, int64_t key,
                     C shift, C product) {
  constexpr C kNothing = -std::numeric_limits<C>::infinity();
  if (key < run.begin || key >= run.end) return kNothing;
  C score = product * static_cast<C>(args.scale);
  if (args.slopes != nullptr) {
    const int64_t distance = query + args.kv_len - args.q_len - key;
    score -= static_cast<C>(LoadGlobal<float>(args.slopes + head)) *
             static_cast<C>(distance < 0 ? -distance : distance);
  }
  if (args.mask.data == nullptr) return score;
  return score + (MaskOf<C>(args, batch, head, query, key) - shift);
}

/// What dropout makes of probabilities: factors of 0 or 1 / (1 - dropout).
template <typename C>
class Dropped {
 public:
  __device__ explicit Dropped(const AttentionArgs& args)
      : args_(args),
        // The smallest float that numbers that are kept do not lie below.
        bound_(
            static_cast<float>(std::ceil(args.dropout * 0x1.0p24) * 0x1.0p-24)),
        factor_(static_cast<C>(args.dropout < 1 ? 1 / (1 - args.dropout) : 0)) {
  }
  __device__ C FactorOf(int64_t batch, int64_t head, int64_t query,
                        int64_t key) const {
    if (args_.dropout == 0) return C(1);
    const int64_t element = FirstProbability(args_, batch, head, query) + key;
    const float u =
        UniformOf(WordsOf(args_.dropout_key, args_.dropout_stream, element)[0]);
    return u >= bound_ ? factor_ : C(0);
  }

 private:
  const AttentionArgs& args_;
  const float bound_;
  const C factor_;
};

__device__ int64_t KvHead(const AttentionArgs& args, int64_t head) {
  return head / (args.q_heads / args.kv_heads);
}

template <typename C>
__global__ void __launch_bounds__(kMostWarps* kWarpThreads)
    AttentionKernel(AttentionArgs args) {
  CH_SHARED(shared, Shared<C>);
  constexpr C kNothing = -std::numeric_limits<C>::infinity();
  const Where where = WhereOf(args.q_len, args.q_heads, kCols<C>);
  const int64_t kv_head = KvHead(args, where.head);
  const Head q = HeadOf(args.q, where.batch, where.head, args.q_len);
  const Head k = HeadOf(args.k, where.batch, kv_head, args.kv_len);
  const Head v = HeadOf(args.v, where.batch, kv_head, args.kv_len);
  const Dropped<C> dropped(args);
  C max[kRows];
  C sum[kRows];
  C shifts[kRows];
  KeyRun runs[kRows];
  Sums<C> sums = {};
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int64_t query = where.row + Warp() * kRows + r;
    max[r] = kNothing;
    sum[r] = C(0);
    runs[r] = RunOf(args, where.batch, query);
    shifts[r] = MaskShift<C>(args, where.batch, where.head, query);
  }
  const KeyRun keys = RunOfRows(args, where.batch, where.row);
  for (int64_t key = keys.begin; key < keys.end; key += kTile) {
    if (!TileShows<C>(args, runs, where, key)) continue;
    C weights[kRows];
    Dots(shared, q, where.row, k, key, args.dtype, args.head_dim, weights);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int64_t query = where.row + Warp() * kRows + r;
      const C score = ScoreOf(args, runs[r], where.batch, where.head, query,
                              key + LaneOfWarp(), shifts[r], weights[r]);
      const C new_max = LargerOf(
          max[r], WarpReduce(score, [](C a, C b) { return LargerOf(a, b); }));
      // What was added so far is for the old maximum.
      const C rescale = new_max == kNothing ? C(1) : std::exp(max[r] - new_max);
      weights[r] = score == kNothing ? C(0) : std::exp(score - new_max);
      sum[r] = sum[r] * rescale +
               WarpReduce(weights[r], [](C a, C b) { return a + b; });
      max[r] = new_max;
      if (weights[r] != C(0)) {
        weights[r] *= dropped.FactorOf(where.batch, where.head, query,
                                       key + LaneOfWarp());
      }
#pragma unroll
      for (int i = 0; i < kCols<C> / kWarpThreads; ++i) sums[r][i] *= rescale;
    }
    AddWeighted(shared, weights, v, key, args.dtype, where.col, args.head_dim,
                sums);
  }
  C factors[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    factors[r] = max[r] == kNothing ? C(0) : C(1) / sum[r];
    const int64_t t = where.row + Warp() * kRows + r;
    if (blockIdx.y == 0 && LaneOfWarp() == 0 && t < args.q_len) {
      StoreElement(args.logsumexp, StatisticsDType(args.dtype),
                   (where.batch * args.q_heads + where.head) * args.q_len + t,
                   max[r] == kNothing ? kNothing : max[r] + std::log(sum[r]));
    }
  }
  StoreSums(args.out, args.dtype, where, args.q_len, args.head_dim, factors,
            sums);
}

/// delta[b, h, t] = the product of out and its gradient, by a warp; behind all
/// of them MaskShift, where there are shifts.
template <typename C>
__global__ void __launch_bounds__(256)
    DeltaKernel(AttentionBackwardArgs args, C* delta) {
  const AttentionArgs& forward = args.forward;
  const int64_t rows = forward.batch * forward.q_heads * forward.q_len;
  const int64_t warps = GlobalThreads() / kWarpThreads;
  for (int64_t row = GlobalThread() / kWarpThreads; row < rows; row += warps) {
    const int64_t t = row % forward.q_len;
    const int64_t h = row / forward.q_len % forward.q_heads;
    const int64_t b = row / forward.q_len / forward.q_heads;
    const Head out = HeadOf(forward.out, b, h, forward.q_len);
    const Head grad = HeadOf(args.grad, b, h, forward.q_len);
    C sum = C(0);
    for (int64_t d = LaneOfWarp(); d < forward.head_dim; d += kWarpThreads) {
      sum += LoadElement<C>(out.data, forward.dtype,
                            out.first + t * out.time_stride + d) *
             LoadElement<C>(grad.data, forward.dtype,
                            grad.first + t * grad.time_stride + d);
    }
    sum = WarpReduce(sum, [](C a, C b) { return a + b; });
    const C shift = MaskShift<C>(forward, b, h, t);
    if (LaneOfWarp() != 0) continue;
    StoreGlobal(delta + row, sum);
    if (HasShifts(forward)) StoreGlobal(delta + rows + row, shift);
  }
}

/// The log-sum-exp, delta and MaskShift of a query; zeros beyond the last one.
template <typename C>
struct OfQuery {
  C logsumexp;
  C delta;
  C shift;

  __device__ OfQuery(const AttentionArgs& args, const C* deltas, int64_t batch,
                     int64_t head, int64_t query) {
    const bool inside = query < args.q_len;
    const int64_t at = (batch * args.q_heads + head) * args.q_len + query;
    logsumexp =
        inside ? LoadElement<C>(args.logsumexp, StatisticsDType(args.dtype), at)
               : C(0);
    delta = inside ? LoadGlobal<C>(deltas + at) : C(0);
    const int64_t all = args.batch * args.q_heads * args.q_len;
    shift = inside && HasShifts(args) ? LoadGlobal<C>(deltas + all + at) : C(0);
  }
  /// Of a score; -inf where the query does not see the key.
  __device__ C Probability(C score) const {
    constexpr C kNothing = -std::numeric_limits<C>::infinity();
    return logsumexp == kNothing || score == kNothing
               ? C(0)
               : std::exp(score - logsumexp);
  }
};

template <typename C>
__global__ void __launch_bounds__(kMostWarps* kWarpThreads)
    QueryGradientKernel(AttentionBackwardArgs args, const C* deltas) {
  CH_SHARED(shared, Shared<C>);
  const AttentionArgs& forward = args.forward;
  const int64_t dim = forward.head_dim;
  const Where where = WhereOf(forward.q_len, forward.q_heads, kCols<C>);
  const int64_t kv_head = KvHead(forward, where.head);
  const Head q = HeadOf(forward.q, where.batch, where.head, forward.q_len);
  const Head grad = HeadOf(args.grad, where.batch, where.head, forward.q_len);
  const Head k = HeadOf(forward.k, where.batch, kv_head, forward.kv_len);
  const Head v = HeadOf(forward.v, where.batch, kv_head, forward.kv_len);
  const C scale = static_cast<C>(forward.scale);
  const Dropped<C> dropped(forward);
  Sums<C> sums = {};
  KeyRun runs[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    runs[r] = RunOf(forward, where.batch, where.row + Warp() * kRows + r);
  }
  const KeyRun keys = RunOfRows(forward, where.batch, where.row);
  for (int64_t key = keys.begin; key < keys.end; key += kTile) {
    if (!TileShows<C>(forward, runs, where, key)) continue;
    C scores[kRows];
    C dots[kRows];
    Dots(shared, q, where.row, k, key, forward.dtype, dim, scores);
    Dots(shared, grad, where.row, v, key, forward.dtype, dim, dots);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int64_t query = where.row + Warp() * kRows + r;
      const OfQuery<C> of(forward, deltas, where.batch, where.head, query);
      const int64_t own = key + LaneOfWarp();
      const C p =
          of.Probability(ScoreOf(forward, runs[r], where.batch, where.head,
                                 query, own, of.shift, scores[r]));
      const C factor =
          p == C(0) ? C(0)
                    : dropped.FactorOf(where.batch, where.head, query, own);
      dots[r] = p == C(0) ? C(0) : p * (dots[r] * factor - of.delta) * scale;
    }
    AddWeighted(shared, dots, k, key, forward.dtype, where.col, dim, sums);
  }
  C ones[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) ones[r] = C(1);
  StoreSums(args.dq, forward.dtype, where, forward.q_len, dim, ones, sums);
}

template <typename C>
__global__ void __launch_bounds__(kMostWarps* kWarpThreads)
    KeyGradientKernel(AttentionBackwardArgs args, const C* deltas) {
  CH_SHARED(shared, Shared<C>);
  const AttentionArgs& forward = args.forward;
  const int64_t dim = forward.head_dim;
  const Where where = WhereOf(forward.kv_len, forward.kv_heads, kCols<C>);
  const int64_t group = forward.q_heads / forward.kv_heads;
  const Head k = HeadOf(forward.k, where.batch, where.head, forward.kv_len);
  const Head v = HeadOf(forward.v, where.batch, where.head, forward.kv_len);
  const C scale = static_cast<C>(forward.scale);
  const Dropped<C> dropped(forward);
  Sums<C> dk = {};
  Sums<C> dv = {};
  // The first query that may see any of these keys.
  int64_t first = 0;
  if (forward.causal) {
    first = where.row - forward.kv_len + forward.q_len;
    first = first < 0 ? 0 : first / kTile * kTile;
  }
  for (int64_t h = where.head * group; h < (where.head + 1) * group; ++h) {
    const Head q = HeadOf(forward.q, where.batch, h, forward.q_len);
    const Head grad = HeadOf(args.grad, where.batch, h, forward.q_len);
    for (int64_t query = first; query < forward.q_len; query += kTile) {
      const int64_t own = query + LaneOfWarp();
      const KeyRun run = RunOf(forward, where.batch, own);
      if (!AnySees(run, where.row)) continue;
      if (forward.mask.data != nullptr) {
        bool any = false;
        for (int r = 0; r < kRows; ++r) {
          any = any || Shows<C>(forward, run, where.batch, h, own,
                                where.row + Warp() * kRows + r);
        }
        if (!BlockAny(any)) continue;
      }
      C weights[kRows];
      C dots[kRows];
      Dots(shared, k, where.row, q, query, forward.dtype, dim, weights);
      Dots(shared, v, where.row, grad, query, forward.dtype, dim, dots);
      const OfQuery<C> of(forward, deltas, where.batch, h, own);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const int64_t key = where.row + Warp() * kRows + r;
        const C p = of.Probability(ScoreOf(forward, run, where.batch, h, own,
                                           key, of.shift, weights[r]));
        const C factor =
            p == C(0) ? C(0) : dropped.FactorOf(where.batch, h, own, key);
        weights[r] = p * factor;
        dots[r] = p == C(0) ? C(0) : p * (dots[r] * factor - of.delta) * scale;
      }
      AddWeighted(shared, weights, grad, query, forward.dtype, where.col, dim,
                  dv);
      AddWeighted(shared, dots, q, query, forward.dtype, where.col, dim, dk);
    }
  }
  C ones[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) ones[r] = C(1);
  StoreSums(args.dk, forward.dtype, where, forward.kv_len, dim, ones, dk);
  StoreSums(args.dv, forward.dtype, where, forward.kv_len, dim, ones, dv);
}

LaunchGeometry GeometryOfTiles(int64_t batch, int64_t heads, int64_t rows,
                               int64_t dim, int cols) {
  const auto ceil_div = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  const int64_t warps =
      std::clamp<int64_t>(ceil_div(rows, kRows), 1, kMostWarps);
  LaunchGeometry geometry;
  geometry.blocks = batch * heads * ceil_div(rows, warps * kRows);
  geometry.blocks_y = ceil_div(dim, cols);
  geometry.threads = static_cast<int>(warps) * kWarpThreads;
  CH_CHECK_LT(geometry.blocks, int64_t{1} << 31) << "attention kernel";
  return geometry;
}

template <typename F>
void DispatchAttention(DType dtype, F&& f) {
  CH_CHECK(IsFloatingPoint(dtype)) << "attention kernel of " << Name(dtype);
  if (dtype == DType::kFloat64) return f(double{});
  return f(float{});
}

}  // namespace

int64_t CudaAttentionWorkspaceBytes(const AttentionArgs& /*args*/) { return 0; }

void CudaAttention(const AttentionArgs& args, KernelContext& context) {
  DispatchAttention(args.dtype, [&](auto zero) {
    using C = decltype(zero);
    LaunchKernel("attention", &AttentionKernel<C>,
                 GeometryOfTiles(args.batch, args.q_heads, args.q_len,
                                 args.head_dim, kCols<C>),
                 context, args);
  });
}

int64_t CudaAttentionBackwardWorkspaceBytes(const AttentionBackwardArgs& args) {
  const AttentionArgs& forward = args.forward;
  return forward.batch * forward.q_heads * forward.q_len *
         SizeOf(StatisticsDType(forward.dtype)) * (HasShifts(forward) ? 2 : 1);
}

void CudaAttentionBackward(const AttentionBackwardArgs& args,
                           KernelContext& context) {
  const AttentionArgs& forward = args.forward;
  if (forward.q_heads == 0) return;
  DispatchAttention(forward.dtype, [&](auto zero) {
    using C = decltype(zero);
    auto* const deltas = static_cast<C*>(args.workspace);
    LaunchKernel("attention_delta", &DeltaKernel<C>,
                 GeometryOfItems(forward.batch * forward.q_heads *
                                 forward.q_len * kWarpThreads),
                 context, args, deltas);
    LaunchKernel("attention_dq", &QueryGradientKernel<C>,
                 GeometryOfTiles(forward.batch, forward.q_heads, forward.q_len,
                                 forward.head_dim, kCols<C>),
                 context, args, static_cast<const C*>(deltas));
    LaunchKernel("attention_dkv", &KeyGradientKernel<C>,
                 GeometryOfTiles(forward.batch, forward.kv_heads,
                                 forward.kv_len, forward.head_dim, kCols<C>),
                 context, args, static_cast<const C*>(deltas));
  });
}

}  // namespace crosshatch::internal
