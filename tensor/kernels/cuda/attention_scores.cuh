// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_CUDA_ATTENTION_SCORES_CUH_
#define CROSSHATCH_TENSOR_KERNELS_CUDA_ATTENTION_SCORES_CUH_

/// \file
/// Shared code of all kernels of attention: the block's position, the keys that
/// a query attends to, scores, and dropout.

#include <cmath>
#include <cstdint>
#include <limits>

#include "crosshatch/tensor/kernels/attention_keys.h"
#include "crosshatch/tensor/kernels/cuda/arithmetic.cuh"
#include "crosshatch/tensor/kernels/cuda/block_reduce.cuh"
#include "crosshatch/tensor/kernels/cuda/element.cuh"
#include "crosshatch/tensor/kernels/cuda/global_index.cuh"
#include "crosshatch/tensor/kernels/cuda/warps.cuh"

namespace crosshatch::internal::attention {

inline constexpr int kMostWarps = 8;

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

/// The block's position: the tile of rows, `of_warp` for each of its warps, the
/// head and the columns.
struct Where {
  int64_t row;
  int64_t batch;
  int64_t head;
  int64_t col;
};
__device__ inline Where WhereOf(int64_t rows, int64_t heads, int of_warp,
                                int cols) {
  const int64_t of_block = Warps() * of_warp;
  const int64_t tiles = (rows + of_block - 1) / of_block;
  const int64_t block = blockIdx.x;
  return {block % tiles * of_block, block / tiles / heads,
          block / tiles % heads, int64_t{blockIdx.y} * cols};
}

/// Returns the keys that a query attends to, apart from a bool mask; none
/// beyond the last query.
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

/// Returns the keys of any of `rows` queries from `row` on, from the start of a
/// tile of `tile` keys. All lanes of a warp call it and get the same result.
__device__ inline KeyRun RunOfRows(const AttentionArgs& args, int64_t batch,
                                   int64_t row, int rows, int tile) {
  KeyRun run = {args.kv_len, 0};
  for (int r = LaneOfWarp(); r < rows; r += kWarpThreads) {
    const KeyRun own = RunOf(args, batch, row + r);
    if (own.empty()) continue;
    run.begin = SmallerOf(run.begin, own.begin);
    run.end = LargerOf(run.end, own.end);
  }
  run.begin = WarpReduce(run.begin,
                         [](int64_t a, int64_t b) { return SmallerOf(a, b); });
  run.end =
      WarpReduce(run.end, [](int64_t a, int64_t b) { return LargerOf(a, b); });
  run.begin = run.begin / tile * tile;
  return run;
}

/// Returns whether a query with `run` attends to any of `keys` keys from `key`
/// on.
__device__ inline bool Sees(const KeyRun& run, int64_t key, int keys) {
  return !run.empty() && run.begin < key + keys && run.end > key;
}

/// The same for any lane's query. All lanes of a warp call it and get the same
/// result.
__device__ inline bool AnySees(const KeyRun& run, int64_t key, int keys) {
  return __any_sync(kFullWarp, Sees(run, key, keys) ? 1 : 0) != 0;
}

/// Returns whether any thread of the block has a `value`. All threads call it.
__device__ inline bool BlockAny(bool value) {
  CH_SHARED(of_warps, int[kMostWarps]);
  const int any = __any_sync(kFullWarp, value ? 1 : 0);
  if (LaneOfWarp() == 0) of_warps[Warp()] = any;
  __syncthreads();
  int of_block = 0;
  for (int warp = 0; warp < Warps(); ++warp) of_block |= of_warps[warp];
  // Before the next call writes there.
  __syncthreads();
  return of_block != 0;
}

/// Returns the value of the mask, which must not be null, for a query and a
/// key.
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

/// Returns whether the mask, if any, allows the query a key of `run`.
template <typename C>
__device__ bool Shows(const AttentionArgs& args, const KeyRun& run,
                      int64_t batch, int64_t head, int64_t query, int64_t key) {
  return key >= run.begin && key < run.end &&
         (args.mask.data == nullptr ||
          MaskOf<C>(args, batch, head, query, key) !=
              -std::numeric_limits<C>::infinity());
}

CH_HOST_DEVICE inline bool HasShifts(const AttentionArgs& args) {
  return args.mask.data != nullptr && args.mask.dtype != DType::kBool;
}

/// Returns the shift that is subtracted from the scores of a query, computed by
/// a warp.
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

/// Returns the score of a query and a key that it attends to, from the product
/// of the two.
/// \param shift MaskShift of the query
template <typename C>
__device__ C ScoreOfSeen(const AttentionArgs& args, int64_t batch, int64_t head,
                         int64_t query, int64_t key, C shift, C product) {
  C score = product * static_cast<C>(args.scale);
  if (args.slopes != nullptr) {
    const int64_t distance = query + args.kv_len - args.q_len - key;
    score -= static_cast<C>(LoadGlobal<float>(args.slopes + head)) *
             static_cast<C>(distance < 0 ? -distance : distance);
  }
  if (args.mask.data == nullptr) return score;
  return score + (MaskOf<C>(args, batch, head, query, key) - shift);
}

/// The same if the key is in `run` and the mask allows it; otherwise -inf.
template <typename C>
__device__ C ScoreOf(const AttentionArgs& args, const KeyRun& run,
                     int64_t batch, int64_t head, int64_t query, int64_t key,
                     C shift, C product) {
  if (key < run.begin || key >= run.end) {
    return -std::numeric_limits<C>::infinity();
  }
  return ScoreOfSeen(args, batch, head, query, key, shift, product);
}

/// The factors of probabilities under dropout: 0 or 1 / (1 - dropout).
template <typename C>
class Dropped {
 public:
  __device__ explicit Dropped(const AttentionArgs& args)
      : args_(args),
        // Numbers at least this float are kept.
        bound_(
            static_cast<float>(std::ceil(args.dropout * 0x1.0p24) * 0x1.0p-24)),
        factor_(static_cast<C>(args.dropout < 1 ? 1 / (1 - args.dropout) : 0)) {
  }
  __device__ bool Keeps(int64_t batch, int64_t head, int64_t query,
                        int64_t key) const {
    if (args_.dropout == 0) return true;
    const int64_t element = FirstProbability(args_, batch, head, query) + key;
    const float u =
        UniformOf(WordsOf(args_.dropout_key, args_.dropout_stream, element)[0]);
    return u >= bound_;
  }
  __device__ C FactorOf(int64_t batch, int64_t head, int64_t query,
                        int64_t key) const {
    return Keeps(batch, head, query, key) ? factor_ : C(0);
  }
  /// Returns the factor of those that are kept.
  __device__ C factor() const { return factor_; }

 private:
  const AttentionArgs& args_;
  const float bound_;
  const C factor_;
};

__device__ inline int64_t KvHead(const AttentionArgs& args, int64_t head) {
  return head / (args.q_heads / args.kv_heads);
}

/// The log-sum-exp, delta and MaskShift of a query; zeros beyond the last one.
template <typename C>
struct OfQuery {
  C logsumexp;
  C delta;
  C shift;

  /// Returns the probability of a score; -inf if the query does not attend to
  /// the key.
  __device__ C Probability(C score) const {
    constexpr C kNothing = -std::numeric_limits<C>::infinity();
    return logsumexp == kNothing || score == kNothing
               ? C(0)
               : std::exp(score - logsumexp);
  }
};
template <typename C>
__device__ OfQuery<C> OfQueryAt(const AttentionArgs& args, const C* deltas,
                                int64_t batch, int64_t head, int64_t query) {
  if (query >= args.q_len) return {C(0), C(0), C(0)};
  const int64_t at = (batch * args.q_heads + head) * args.q_len + query;
  const int64_t all = args.batch * args.q_heads * args.q_len;
  return {LoadElement<C>(args.logsumexp, StatisticsDType(args.dtype), at),
          LoadGlobal<C>(deltas + at),
          HasShifts(args) ? LoadGlobal<C>(deltas + all + at) : C(0)};
}

/// Returns the first query that may attend to any key from `key` on, or the
/// start of its tile of `tile` queries.
__device__ inline int64_t FirstQuery(const AttentionArgs& args, int64_t key,
                                     int tile) {
  const int64_t first = key - args.kv_len + args.q_len;
  return args.causal && first > 0 ? first / tile * tile : 0;
}

/// Returns the end of the queries that may attend to a key below `key_end`.
__device__ inline int64_t EndQuery(const AttentionArgs& args, int64_t key_end) {
  if (args.window == 0) return args.q_len;
  const int64_t end = key_end - 1 + args.window - args.kv_len + args.q_len;
  return end < args.q_len ? end : args.q_len;
}

}  // namespace crosshatch::internal::attention

#endif  // CROSSHATCH_TENSOR_KERNELS_CUDA_ATTENTION_SCORES_CUH_
