// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstdint>
#include <limits>

#include "crosshatch/tensor/kernels/cuda/attention_geometry.h"
#include "crosshatch/tensor/kernels/cuda/attention_mma.h"
#include "crosshatch/tensor/kernels/cuda/attention_scores.cuh"
#include "crosshatch/tensor/kernels/cuda/attention_tiles.cuh"
#include "crosshatch/tensor/kernels/cuda/block_reduce.cuh"
#include "crosshatch/tensor/kernels/cuda/element.cuh"
#include "crosshatch/tensor/kernels/cuda/entry_points.h"

namespace crosshatch::internal {
namespace attention {
namespace {

template <typename C>
__global__ void __launch_bounds__(kMostWarps* kWarpThreads)
    AttentionKernel(AttentionArgs args) {
  CH_SHARED(shared, Shared<C>);
  constexpr C kNothing = -std::numeric_limits<C>::infinity();
  const Where where = WhereOf(args.q_len, args.q_heads, kRows, kCols<C>);
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
  const KeyRun keys =
      RunOfRows(args, where.batch, where.row, Warps() * kRows, kTile);
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
      // The previous sum is relative to the old maximum.
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

}  // namespace
}  // namespace attention

int64_t CudaAttentionWorkspaceBytes(const AttentionArgs& /*args*/) { return 0; }

void CudaAttention(const AttentionArgs& args, KernelContext& context) {
  if (attention::IsByMma(args)) return attention::MmaAttention(args, context);
  attention::DispatchAttention(args.dtype, [&](auto zero) {
    using C = decltype(zero);
    LaunchKernel("attention", &attention::AttentionKernel<C>,
                 attention::GeometryOf<C>(args, args.q_heads, args.q_len),
                 context, args);
  });
}

}  // namespace crosshatch::internal
