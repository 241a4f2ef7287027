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

/// Combines the values of the four lanes of a row.
template <typename Combine>
__device__ __forceinline__ float OfRow(float value, Combine combine) {
  value = combine(value, __shfl_xor_sync(kFullWarp, value, 1));
  return combine(value, __shfl_xor_sync(kFullWarp, value, 2));
}

template <DType kDType, int kCols>
__global__ void __launch_bounds__(kMmaThreads, kMmaBlocks)
    MmaAttentionKernel(AttentionArgs args) {
  constexpr int kKeys = 64;
  constexpr float kNothing = -std::numeric_limits<float>::infinity();
  CH_SHARED(keys, TileRow<kCols>[kKeys]);
  CH_SHARED(values, TileRow<kCols>[kKeys]);
  static_assert(kKeys >= kMmaBlockRows);
  const Where where = WhereOf(args.q_len, args.q_heads, kMmaRows, kCols);
  const int dim = static_cast<int>(args.head_dim);
  const int64_t kv_head = KvHead(args, where.head);
  const Head q = HeadOf(args.q, where.batch, where.head, args.q_len);
  const Head k = HeadOf(args.k, where.batch, kv_head, args.kv_len);
  const Head v = HeadOf(args.v, where.batch, kv_head, args.kv_len);
  const Dropped<float> dropped(args);
  const int64_t row = where.row + Warp() * kMmaRows;  // The warp's first row.
  TileRow<kCols>* const own = keys + Warp() * kMmaRows;
  MmaLeft<kCols> queries = {};
  LoadLefts(own, q, row, dim, queries);
  const KeyRun runs[2] = {RunOf(args, where.batch, row + RowOf(0)),
                          RunOf(args, where.batch, row + RowOf(2))};
  float shifts[2] = {};
  for (int r = 0; HasShifts(args) && r < kMmaRows; ++r) {
    const float shift =
        MaskShift<float>(args, where.batch, where.head, row + r);
    if (r == RowOf(0)) shifts[0] = shift;
    if (r == RowOf(2)) shifts[1] = shift;
  }
  float max[2] = {kNothing, kNothing};
  float sum[2] = {};  // Over the lane's own columns.
  MmaSums<kCols> sums = {};
  // Wait until all queries are read; keys overwrite them.
  __syncthreads();
  const KeyRun all =
      RunOfRows(args, where.batch, where.row, Warps() * kMmaRows, kKeys);
  for (int64_t key = all.begin; key < all.end; key += kKeys) {
    const QueriesByKeys pair_at = {row, key};
    const uint32_t shown = ShownByMask<kKeys>(
        args, ShownByRuns<kKeys>(runs, key), where.batch, where.head, pair_at);
    if (args.mask.data != nullptr && !BlockAny(shown != 0)) continue;
    LoadRows(keys, k, key, kKeys, dim, threadIdx.x, blockDim.x);
    LoadRows(values, v, key, kKeys, dim, threadIdx.x, blockDim.x);
    __syncthreads();
    if (__any_sync(kFullWarp, shown != 0 ? 1 : 0) != 0) {
      MmaSums<kKeys> weights = {};
      AddProducts<kDType, kCols, kKeys>(queries, keys, dim, weights);
      MakeScores<kKeys>(
          args, shown, where.batch, where.head, pair_at,
          [&](int, int i) { return shifts[i / 2]; }, weights);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float largest = max[half];
#pragma unroll
        for (int n = 0; n < kKeys / 8; ++n) {
          largest = LargerOf(largest, weights[n][2 * half]);
          largest = LargerOf(largest, weights[n][2 * half + 1]);
        }
        largest =
            OfRow(largest, [](float a, float b) { return LargerOf(a, b); });
        // The previous sum is relative to the old maximum.
        const float rescale =
            largest == kNothing ? 1.0f : std::exp(max[half] - largest);
        max[half] = largest;
        sum[half] *= rescale;
#pragma unroll
        for (int n = 0; n < kCols / 8; ++n) {
          sums[n][2 * half] *= rescale;
          sums[n][2 * half + 1] *= rescale;
        }
      }
      const uint32_t kept =
          KeptOf<kKeys>(args, dropped, shown, where.batch, where.head, pair_at);
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float& weight = weights[n][i];
          weight = weight == kNothing ? 0.0f : std::exp(weight - max[i / 2]);
          sum[i / 2] += weight;
          if (!Has(kept, n, i)) weight = 0.0f;
        }
      }
      AddWeighted<kDType, kCols, kKeys>(weights, values, dim, sums);
    }
    __syncthreads();
  }
  float factors[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    sum[half] = OfRow(sum[half], [](float a, float b) { return a + b; });
    const bool is_nothing = max[half] == kNothing;
    factors[half] = is_nothing ? 0.0f : dropped.factor() / sum[half];
    const int64_t t = row + RowOf(2 * half);
    if (LaneOfWarp() % 4 == 0 && t < args.q_len) {
      StoreElement(args.logsumexp, DType::kFloat32,
                   (where.batch * args.q_heads + where.head) * args.q_len + t,
                   is_nothing ? kNothing : max[half] + std::log(sum[half]));
    }
  }
  StoreRows<kDType>(own, sums, factors, args.out, where, row, args.q_len, dim);
}

}  // namespace

void MmaAttention(const AttentionArgs& args, KernelContext& context) {
  DispatchMma(args, [&](auto dtype, auto cols) {
    LaunchKernel(
        "attention_mma",
        &MmaAttentionKernel<decltype(dtype)::value, decltype(cols)::value>,
        MmaGeometryOf(args, args.q_heads, args.q_len), context, args);
  });
}

}  // namespace crosshatch::internal::attention
