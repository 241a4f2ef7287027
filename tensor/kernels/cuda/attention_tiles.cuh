// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_CUDA_ATTENTION_TILES_CUH_
#define CROSSHATCH_TENSOR_KERNELS_CUDA_ATTENTION_TILES_CUH_

/// \file
/// Attention by tiles of 32 queries and 32 keys. A block takes 32 rows, of
/// queries or in the gradients by keys of keys, and goes over the others in
/// tiles of 32, one for each lane of its warps: a lane has the scores of its
/// warp's four rows with its own column. What a tile adds to the results goes
/// through shared memory, and there a lane has every 32nd of up to kCols
/// columns of the head; other columns are other blocks'.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/kernels/attention_keys.h"
#include "crosshatch/tensor/kernels/cuda/block_reduce.cuh"
#include "crosshatch/tensor/kernels/cuda/element.cuh"
#include "crosshatch/tensor/kernels/cuda/global_index.cuh"

namespace crosshatch::internal::attention {

inline constexpr int kTile = 32;
inline constexpr int kMostWarps = 8;
inline constexpr int kRows = kTile / kMostWarps;  // Of a warp.

/// Columns of the results that a block makes.
template <typename C>
inline constexpr int kCols = sizeof(C) == 8 ? 64 : 128;

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
__device__ inline Where WhereOf(int64_t rows, int64_t heads, int cols) {
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
__device__ inline KeyRun RunOf(const AttentionArgs& args, int64_t batch,
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
__device__ inline KeyRun RunOfRows(const AttentionArgs& args, int64_t batch,
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
__device__ inline bool AnySees(const KeyRun& run, int64_t row) {
  const bool sees =
      !run.empty() && run.begin < row + Warps() * kRows && run.end > row;
  return __any_sync(kFullWarp, sees ? 1 : 0) != 0;
}

/// Whether any thread of the block has a `value`. All of them call it.
__device__ inline bool BlockAny(bool value) {
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

CH_HOST_DEVICE inline bool HasShifts(const AttentionArgs& args) {
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

__device__ inline int64_t KvHead(const AttentionArgs& args, int64_t head) {
  return head / (args.q_heads / args.kv_heads);
}

/// Blocks for the tiles of `rows` rows of each head, and of `cols` of its `dim`
/// columns each.
inline LaunchGeometry GeometryOfTiles(int64_t batch, int64_t heads,
                                      int64_t rows, int64_t dim, int cols) {
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

/// f(a zero of the type that attention of `dtype` computes in).
template <typename F>
void DispatchAttention(DType dtype, F&& f) {
  CH_CHECK(IsFloatingPoint(dtype)) << "attention kernel of " << Name(dtype);
  if (dtype == DType::kFloat64) return f(double{});
  return f(float{});
}

}  // namespace crosshatch::internal::attention

#endif  // CROSSHATCH_TENSOR_KERNELS_CUDA_ATTENTION_TILES_CUH_
