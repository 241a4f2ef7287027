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
#include "crosshatch/tensor/kernels/cuda/global_index.cuh"

namespace crosshatch::internal {
namespace attention {
namespace {

/// Computes delta[b, h, t] = the product of out and its gradient, one per warp.
/// In memory the MaskShifts follow, if any.
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

template <typename C>
__global__ void __launch_bounds__(kMostWarps* kWarpThreads)
    QueryGradientKernel(AttentionBackwardArgs args, const C* deltas) {
  CH_SHARED(shared, Shared<C>);
  const AttentionArgs& forward = args.forward;
  const int64_t dim = forward.head_dim;
  const Where where = WhereOf(forward.q_len, forward.q_heads, kRows, kCols<C>);
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
  const KeyRun keys =
      RunOfRows(forward, where.batch, where.row, Warps() * kRows, kTile);
  for (int64_t key = keys.begin; key < keys.end; key += kTile) {
    if (!TileShows<C>(forward, runs, where, key)) continue;
    C scores[kRows];
    C dots[kRows];
    Dots(shared, q, where.row, k, key, forward.dtype, dim, scores);
    Dots(shared, grad, where.row, v, key, forward.dtype, dim, dots);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int64_t query = where.row + Warp() * kRows + r;
      const OfQuery<C> of =
          OfQueryAt(forward, deltas, where.batch, where.head, query);
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
  const Where where =
      WhereOf(forward.kv_len, forward.kv_heads, kRows, kCols<C>);
  const int64_t group = forward.q_heads / forward.kv_heads;
  const Head k = HeadOf(forward.k, where.batch, where.head, forward.kv_len);
  const Head v = HeadOf(forward.v, where.batch, where.head, forward.kv_len);
  const C scale = static_cast<C>(forward.scale);
  const Dropped<C> dropped(forward);
  Sums<C> dk = {};
  Sums<C> dv = {};
  const int64_t first = FirstQuery(forward, where.row, kTile);
  for (int64_t h = where.head * group; h < (where.head + 1) * group; ++h) {
    const Head q = HeadOf(forward.q, where.batch, h, forward.q_len);
    const Head grad = HeadOf(args.grad, where.batch, h, forward.q_len);
    for (int64_t query = first; query < forward.q_len; query += kTile) {
      const int64_t own = query + LaneOfWarp();
      const KeyRun run = RunOf(forward, where.batch, own);
      if (!AnySees(run, where.row, Warps() * kRows)) continue;
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
      const OfQuery<C> of = OfQueryAt(forward, deltas, where.batch, h, own);
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

}  // namespace
}  // namespace attention

int64_t CudaAttentionBackwardWorkspaceBytes(const AttentionBackwardArgs& args) {
  const AttentionArgs& forward = args.forward;
  if (attention::IsByMma(forward)) {
    return attention::MmaBackwardLayout(forward).bytes;
  }
  return forward.batch * forward.q_heads * forward.q_len *
         SizeOf(StatisticsDType(forward.dtype)) *
         (attention::HasShifts(forward) ? 2 : 1);
}

void CudaAttentionBackward(const AttentionBackwardArgs& args,
                           KernelContext& context) {
  const AttentionArgs& forward = args.forward;
  if (forward.q_heads == 0) return;
  if (attention::IsByMma(forward)) {
    return attention::MmaAttentionBackward(args, context);
  }
  attention::DispatchAttention(forward.dtype, [&](auto zero) {
    using C = decltype(zero);
    auto* const deltas = static_cast<C*>(args.workspace);
    LaunchKernel("attention_delta", &attention::DeltaKernel<C>,
                 GeometryOfItems(forward.batch * forward.q_heads *
                                 forward.q_len * kWarpThreads),
                 context, args, deltas);
    LaunchKernel(
        "attention_dq", &attention::QueryGradientKernel<C>,
        attention::GeometryOf<C>(forward, forward.q_heads, forward.q_len),
        context, args, static_cast<const C*>(deltas));
    LaunchKernel(
        "attention_dkv", &attention::KeyGradientKernel<C>,
        attention::GeometryOf<C>(forward, forward.kv_heads, forward.kv_len),
        context, args, static_cast<const C*>(deltas));
  });
}

}  // namespace crosshatch::internal
