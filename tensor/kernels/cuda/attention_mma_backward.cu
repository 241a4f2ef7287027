// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstdint>
#include <limits>

#include "crosshatch/tensor/kernels/cuda/attention_mma.cuh"
#include "crosshatch/tensor/kernels/cuda/attention_mma.h"
#include "crosshatch/tensor/kernels/cuda/attention_mma_scores.cuh"
#include "crosshatch/tensor/kernels/cuda/attention_scores.cuh"
#include "crosshatch/tensor/kernels/cuda/block_reduce.cuh"
#include "crosshatch/tensor/kernels/cuda/element.cuh"

namespace crosshatch::internal::attention {
namespace {

/// Returns the gradient of a score before the scale.
/// \param kept whether dropout keeps the probability p
/// \param dot the product of the value and the gradient of out
__device__ __forceinline__ float ScoreGradient(float p, bool kept, float factor,
                                               float dot, float delta) {
  return p == 0.0f ? 0.0f : p * ((kept ? dot * factor : 0.0f) - delta);
}

template <DType kDType, int kCols>
__global__ void __launch_bounds__(kMmaThreads, kMmaBlocks)
    MmaQueryGradientKernel(AttentionBackwardArgs args, const float* deltas) {
  constexpr int kKeys = 32;
  CH_SHARED(rows, TileRow<kCols>[2 * kKeys]);
  static_assert(2 * kKeys >= kMmaBlockRows);
  TileRow<kCols>* const keys = rows;
  TileRow<kCols>* const values = rows + kKeys;
  const AttentionArgs& forward = args.forward;
  const int dim = static_cast<int>(forward.head_dim);
  const Where where = WhereOf(forward.q_len, forward.q_heads, kMmaRows, kCols);
  const int64_t kv_head = KvHead(forward, where.head);
  const Head q = HeadOf(forward.q, where.batch, where.head, forward.q_len);
  const Head grad = HeadOf(args.grad, where.batch, where.head, forward.q_len);
  const Head k = HeadOf(forward.k, where.batch, kv_head, forward.kv_len);
  const Head v = HeadOf(forward.v, where.batch, kv_head, forward.kv_len);
  const Dropped<float> dropped(forward);
  const int64_t row = where.row + Warp() * kMmaRows;  // The warp's first row.
  TileRow<kCols>* const own = rows + Warp() * kMmaRows;
  MmaLeft<kCols> queries = {};
  MmaLeft<kCols> grads = {};
  LoadLefts(own, q, row, dim, queries);
  LoadLefts(own, grad, row, dim, grads);
  KeyRun runs[2];
  OfQuery<float> of[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t query = row + RowOf(2 * half);
    runs[half] = RunOf(forward, where.batch, query);
    of[half] = OfQueryAt(forward, deltas, where.batch, where.head, query);
  }
  MmaSums<kCols> sums = {};
  // Wait until all queries are read; keys overwrite them.
  __syncthreads();
  const KeyRun all =
      RunOfRows(forward, where.batch, where.row, Warps() * kMmaRows, kKeys);
  for (int64_t key = all.begin; key < all.end; key += kKeys) {
    const QueriesByKeys pair_at = {row, key};
    const uint32_t shown =
        ShownByMask<kKeys>(forward, ShownByRuns<kKeys>(runs, key), where.batch,
                           where.head, pair_at);
    if (forward.mask.data != nullptr && !BlockAny(shown != 0)) continue;
    LoadRows(keys, k, key, kKeys, dim, threadIdx.x, blockDim.x);
    LoadRows(values, v, key, kKeys, dim, threadIdx.x, blockDim.x);
    __syncthreads();
    if (__any_sync(kFullWarp, shown != 0 ? 1 : 0) != 0) {
      MmaSums<kKeys> scores = {};
      MmaSums<kKeys> dots = {};
      AddProducts<kDType, kCols, kKeys>(queries, keys, dim, scores);
      AddProducts<kDType, kCols, kKeys>(grads, values, dim, dots);
      MakeScores<kKeys>(
          forward, shown, where.batch, where.head, pair_at,
          [&](int, int i) { return of[i / 2].shift; }, scores);
      const uint32_t kept = KeptOf<kKeys>(forward, dropped, shown, where.batch,
                                          where.head, pair_at);
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const OfQuery<float>& of_row = of[i / 2];
          dots[n][i] =
              ScoreGradient(of_row.Probability(scores[n][i]), Has(kept, n, i),
                            dropped.factor(), dots[n][i], of_row.delta);
        }
      }
      AddWeighted<kDType, kCols, kKeys>(dots, keys, dim, sums);
    }
    __syncthreads();
  }
  const auto scale = static_cast<float>(forward.scale);
  StoreRows<kDType>(own, sums, {scale, scale}, args.dq, where, row,
                    forward.q_len, dim);
}

template <DType kDType, int kCols>
__global__ void __launch_bounds__(kMmaThreads, kMmaBlocks)
    MmaKeyGradientKernel(AttentionBackwardArgs args, const float* deltas) {
  // With 128 columns, shared memory has no room for more.
  constexpr int kQueries = kCols > 64 ? 16 : 32;
  CH_SHARED(keys, TileRow<kCols>[kMmaBlockRows]);
  CH_SHARED(values, TileRow<kCols>[kMmaBlockRows]);
  CH_SHARED(queries, TileRow<kCols>[kQueries]);
  CH_SHARED(grads, TileRow<kCols>[kQueries]);
  CH_SHARED(of_queries, OfQuery<float>[kQueries]);
  const AttentionArgs& forward = args.forward;
  const int dim = static_cast<int>(forward.head_dim);
  const Where where =
      WhereOf(forward.kv_len, forward.kv_heads, kMmaRows, kCols);
  const int64_t group = forward.q_heads / forward.kv_heads;
  const Head k = HeadOf(forward.k, where.batch, where.head, forward.kv_len);
  const Head v = HeadOf(forward.v, where.batch, where.head, forward.kv_len);
  const Dropped<float> dropped(forward);
  const int64_t row = where.row + Warp() * kMmaRows;  // The warp's first row.
  TileRow<kCols>* const own_keys = keys + Warp() * kMmaRows;
  TileRow<kCols>* const own_values = values + Warp() * kMmaRows;
  LoadRows(own_keys, k, row, kMmaRows, dim, LaneOfWarp(), kWarpThreads);
  LoadRows(own_values, v, row, kMmaRows, dim, LaneOfWarp(), kWarpThreads);
  __syncwarp();
  MmaSums<kCols> dk = {};
  MmaSums<kCols> dv = {};
  const int64_t first = FirstQuery(forward, where.row, kQueries);
  for (int64_t h = where.head * group; h < (where.head + 1) * group; ++h) {
    const Head q = HeadOf(forward.q, where.batch, h, forward.q_len);
    const Head grad = HeadOf(args.grad, where.batch, h, forward.q_len);
    for (int64_t query = first; query < forward.q_len; query += kQueries) {
      KeyRun run = {0, 0};
      if (LaneOfWarp() < kQueries) {
        run = RunOf(forward, where.batch, query + LaneOfWarp());
      }
      if (!AnySees(run, where.row, Warps() * kMmaRows)) continue;
      const KeysByQueries pair_at = {row, query};
      const uint32_t shown = ShownByMask<kQueries>(
          forward, ShownByColumns<kQueries>(run, row), where.batch, h, pair_at);
      if (forward.mask.data != nullptr && !BlockAny(shown != 0)) continue;
      LoadRows(queries, q, query, kQueries, dim, threadIdx.x, blockDim.x);
      LoadRows(grads, grad, query, kQueries, dim, threadIdx.x, blockDim.x);
      if (threadIdx.x < kQueries) {
        of_queries[threadIdx.x] =
            OfQueryAt(forward, deltas, where.batch, h, query + threadIdx.x);
      }
      __syncthreads();
      if (__any_sync(kFullWarp, shown != 0 ? 1 : 0) != 0) {
        MmaSums<kQueries> weights = {};
        MmaSums<kQueries> dots = {};
        MmaLeft<kCols> left = {};
        LoadLefts(own_keys, dim, left);
        AddProducts<kDType, kCols, kQueries>(left, queries, dim, weights);
        LoadLefts(own_values, dim, left);
        AddProducts<kDType, kCols, kQueries>(left, grads, dim, dots);
        MakeScores<kQueries>(
            forward, shown, where.batch, h, pair_at,
            [&](int n, int i) { return of_queries[ColOf(n, i)].shift; },
            weights);
        const uint32_t kept =
            KeptOf<kQueries>(forward, dropped, shown, where.batch, h, pair_at);
#pragma unroll
        for (int n = 0; n < kQueries / 8; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const OfQuery<float>& of_col = of_queries[ColOf(n, i)];
            const float p = of_col.Probability(weights[n][i]);
            const bool is_kept = Has(kept, n, i);
            weights[n][i] = is_kept ? p : 0.0f;
            dots[n][i] = ScoreGradient(p, is_kept, dropped.factor(), dots[n][i],
                                       of_col.delta);
          }
        }
        AddWeighted<kDType, kCols, kQueries>(weights, grads, dim, dv);
        AddWeighted<kDType, kCols, kQueries>(dots, queries, dim, dk);
      }
      __syncthreads();
    }
  }
  const auto scale = static_cast<float>(forward.scale);
  const float factor = dropped.factor();
  StoreRows<kDType>(own_keys, dk, {scale, scale}, args.dk, where, row,
                    forward.kv_len, dim);
  StoreRows<kDType>(own_values, dv, {factor, factor}, args.dv, where, row,
                    forward.kv_len, dim);
}

}  // namespace

void MmaAttentionBackward(const AttentionBackwardArgs& args,
                          const float* deltas, KernelContext& context) {
  const AttentionArgs& forward = args.forward;
  DispatchMma(forward, [&](auto dtype, auto cols) {
    constexpr DType kDType = decltype(dtype)::value;
    constexpr int kCols = decltype(cols)::value;
    LaunchKernel("attention_mma_dq", &MmaQueryGradientKernel<kDType, kCols>,
                 MmaGeometryOf(forward, forward.q_heads, forward.q_len),
                 context, args, deltas);
    LaunchKernel("attention_mma_dkv", &MmaKeyGradientKernel<kDType, kCols>,
                 MmaGeometryOf(forward, forward.kv_heads, forward.kv_len),
                 context, args, deltas);
  });
}

}  // namespace crosshatch::internal::attention
