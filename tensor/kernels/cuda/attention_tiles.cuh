// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_CUDA_ATTENTION_TILES_CUH_
#define CROSSHATCH_TENSOR_KERNELS_CUDA_ATTENTION_TILES_CUH_

/// \file
/// Attention by tiles of 32 queries and 32 keys. A block has 32 rows of
/// queries, or in the gradients by keys of keys, and iterates over the others
/// in tiles of 32, one for each lane of its warps: a lane has the scores of its
/// warp's four rows with its own column. A tile's contribution to the results
/// goes through shared memory, where a lane has every 32nd of up to kCols
/// columns of the head. Other columns belong to other blocks.

#include <cstdint>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/kernels/cuda/attention_geometry.h"
#include "crosshatch/tensor/kernels/cuda/attention_scores.cuh"
#include "crosshatch/tensor/kernels/cuda/element.cuh"
#include "crosshatch/tensor/kernels/cuda/warps.cuh"

namespace crosshatch::internal::attention {

inline constexpr int kTile = 32;
inline constexpr int kRows = kTile / kMostWarps;  // Of a warp.

/// Columns of the results that a block makes.
template <typename C>
inline constexpr int kCols = sizeof(C) == 8 ? 64 : 128;

template <typename C>
using ScoreTile = C[kTile][kTile + 1];
template <typename C>
using ValueTile = C[kTile][kCols<C>];

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

/// Returns whether any of the block's queries attends to any of the 32 keys
/// from `key` on, if there is a mask; otherwise true. All threads call it.
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

/// Returns the geometry of kernels whose warps have kRows of `rows` rows of
/// each of `heads` heads, and kCols columns of them.
template <typename C>
LaunchGeometry GeometryOf(const AttentionArgs& args, int64_t heads,
                          int64_t rows) {
  return GeometryOfTiles(args.batch * heads, rows, kRows, kMostWarps,
                         (args.head_dim + kCols<C> - 1) / kCols<C>);
}

/// Calls f(a zero of the compute type of attention of `dtype`).
template <typename F>
void DispatchAttention(DType dtype, F&& f) {
  CH_CHECK(IsFloatingPoint(dtype)) << "attention kernel of " << Name(dtype);
  if (dtype == DType::kFloat64) return f(double{});
  return f(float{});
}

}  // namespace crosshatch::internal::attention

#endif  // CROSSHATCH_TENSOR_KERNELS_CUDA_ATTENTION_TILES_CUH_
