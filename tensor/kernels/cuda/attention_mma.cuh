// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_CUDA_ATTENTION_MMA_CUH_
#define CROSSHATCH_TENSOR_KERNELS_CUDA_ATTENTION_MMA_CUH_

/// \file
/// Attention by warp products (mma.cuh). A warp has 16 rows of queries, or in
/// the gradients by keys of keys. Its block iterates over the others in tiles,
/// which its warps share. Scores and sums stay in registers. Values computed
/// from the scores are rounded to 16 bits when they form the left matrix of the
/// next product.
///
/// With u the dtype's unit roundoff, 2^-8 or 2^-11, that rounding changes each
/// probability, or in the gradients each gradient of a score, by a factor of up
/// to 1 + u. The error of out and dv is thus u times the sums of their terms'
/// absolute values, as much as from rounding them at the end; the error of dq
/// and dk follows from the gradients of scores. In addition, f16 has no numbers
/// below 2^-24 and above 65504. Probabilities are therefore multiplied
/// unscaled, at most 1, and the divisor of dropout and the scale are applied at
/// the end. Only their gradients before that must stay in the range.
///
/// Of each 16 x 8 sums a lane has four elements: number i is in row RowOf(i),
/// and in column ColOf(n, i) of the n-th of several adjacent ones.

#include <cstdint>
#include <limits>
#include <type_traits>

#include "crosshatch/tensor/kernels/cuda/attention_geometry.h"
#include "crosshatch/tensor/kernels/cuda/attention_scores.cuh"
#include "crosshatch/tensor/kernels/cuda/element.cuh"
#include "crosshatch/tensor/kernels/cuda/mma.cuh"
#include "crosshatch/tensor/kernels/cuda/warps.cuh"

namespace crosshatch::internal::attention {

inline constexpr int kMmaRows = 16;  // Of a warp.
inline constexpr int kMmaWarps = 4;
inline constexpr int kMmaBlockRows = kMmaRows * kMmaWarps;
inline constexpr int kMmaThreads = kMmaWarps * kWarpThreads;
// Minimum blocks per multiprocessor; more would leave a thread too few
// registers for its sums.
inline constexpr int kMmaBlocks = 2;

/// Sums of 16 rows and kCols columns.
template <int kCols>
using MmaSums = SumsPart[kCols / 8];
/// The left matrices of 16 rows and kCols columns.
template <int kCols>
using MmaLeft = LeftPart[kCols / 16];

__device__ __forceinline__ int RowOf(int i) {
  return LaneOfWarp() / 4 + i / 2 * 8;
}
__device__ __forceinline__ int ColOf(int n, int i) {
  return n * 8 + LaneOfWarp() % 4 * 2 + i % 2;
}

/// \name Rows of heads
/// @{

/// Returns whether vectors of eight can be read from `data` and from the start
/// of each row.
__device__ __forceinline__ bool IsOfVectors(const uint16_t* data,
                                            int64_t stride) {
  return reinterpret_cast<uintptr_t>(data) % sizeof(Eight) == 0 &&
         stride % 8 == 0;
}

/// Returns eight elements, with zeros from index `count` on.
__device__ __forceinline__ Eight LoadEight(const uint16_t* from, int count,
                                           bool is_vector) {
  if (is_vector && count >= 8) return LoadGlobal<Eight>(from);
  Eight eight = {};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (i >= count) continue;
    const uint32_t bits = LoadGlobal<uint16_t>(from + i);
    eight.values[i / 2] |= bits << i % 2 * 16;
  }
  return eight;
}

__device__ __forceinline__ void StoreEight(uint16_t* to, const Eight& eight,
                                           int count, bool is_vector) {
  if (is_vector && count >= 8) return StoreGlobal(to, eight);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (i >= count) continue;
    StoreGlobal(to + i,
                static_cast<uint16_t>(eight.values[i / 2] >> i % 2 * 16));
  }
}

/// Loads the `count` rows of a head from `row` on, with its `dim` columns, into
/// a tile, using `threads` threads of which this one is `thread`. Zeros
/// outside.
template <int kCols>
__device__ void LoadRows(TileRow<kCols>* tile, const Head& head, int64_t row,
                         int count, int dim, int thread, int threads) {
  constexpr int kEights = kCols / 8;
  // Loads in flight together.
  constexpr int kBatch = 4;
  const uint16_t* const data =
      static_cast<const uint16_t*>(head.data) + head.first;
  const bool is_vector = IsOfVectors(data, head.time_stride);
  for (int first = thread; first < count * kEights; first += kBatch * threads) {
    Eight batch[kBatch];
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const int i = first + j * threads;
      const int64_t t = row + i / kEights;
      const int d = i % kEights * 8;
      batch[j] =
          i < count * kEights && t < head.length && d < dim
              ? LoadEight(data + t * head.time_stride + d, dim - d, is_vector)
              : Eight{};
    }
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const int i = first + j * threads;
      if (i < count * kEights) {
        tile[i / kEights].eights[i % kEights] = batch[j];
      }
    }
  }
}

/// Returns the warp's rows, of a tile of its own, as left matrices.
template <int kCols>
__device__ void LoadLefts(const TileRow<kCols>* own, int dim,
                          MmaLeft<kCols>& left) {
#pragma unroll
  for (int k = 0; k < kCols / 16; ++k) {
    if (16 * k < dim) LoadLeft(left[k], own, 2 * k);
  }
}

/// The same for rows of a head, via `own`.
template <int kCols>
__device__ void LoadLefts(TileRow<kCols>* own, const Head& head, int64_t row,
                          int dim, MmaLeft<kCols>& left) {
  // Before other rows overwrite those that some lane still loads.
  __syncwarp();
  LoadRows(own, head, row, kMmaRows, dim, LaneOfWarp(), kWarpThreads);
  __syncwarp();
  LoadLefts(own, dim, left);
}

/// Stores the warp's rows from `row` on, each times its factor, via `own`.
template <DType kDType, int kCols>
__device__ void StoreRows(TileRow<kCols>* own, const MmaSums<kCols>& sums,
                          const float (&factors)[2], const HeadsOutput& out,
                          const Where& where, int64_t row, int64_t length,
                          int dim) {
  constexpr int kEights = kCols / 8;
#pragma unroll
  for (int n = 0; n < kEights; ++n) {
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      own[RowOf(i)].eights[n].values[LaneOfWarp() % 4] = PairOf<kDType>(
          sums[n][i] * factors[i / 2], sums[n][i + 1] * factors[i / 2]);
    }
  }
  __syncwarp();
  uint16_t* const data = static_cast<uint16_t*>(out.data) +
                         where.batch * out.batch_stride +
                         where.head * out.head_stride;
  const bool is_vector = IsOfVectors(data, out.time_stride);
  for (int i = LaneOfWarp(); i < kMmaRows * kEights; i += kWarpThreads) {
    const int64_t t = row + i / kEights;
    const int d = i % kEights * 8;
    if (t >= length || d >= dim) continue;
    StoreEight(data + t * out.time_stride + d,
               own[i / kEights].eights[i % kEights], dim - d, is_vector);
  }
}

/// @}
/// \name Products
/// @{

/// products += the warp's rows times the transpose of kRows rows of a tile.
template <DType kDType, int kCols, int kRows>
__device__ void AddProducts(const MmaLeft<kCols>& left,
                            const TileRow<kCols>* rows, int dim,
                            MmaSums<kRows>& products) {
#pragma unroll
  for (int k = 0; k < kCols / 16; ++k) {
    if (16 * k >= dim) continue;
#pragma unroll
    for (int n = 0; n < kRows / 16; ++n) {
      RightPart right[2];
      LoadRightOfTransposed(right, rows + 16 * n, 2 * k);
      MultiplyAdd<kDType>(products[2 * n], left[k], right[0]);
      MultiplyAdd<kDType>(products[2 * n + 1], left[k], right[1]);
    }
  }
}

/// sums += weights, rounded to kDType, times kRows rows of a tile.
template <DType kDType, int kCols, int kRows>
__device__ void AddWeighted(const MmaSums<kRows>& weights,
                            const TileRow<kCols>* rows, int dim,
                            MmaSums<kCols>& sums) {
  // Lanes diverge when they compute their weights and multiply together.
  __syncwarp();
#pragma unroll
  for (int k = 0; k < kRows / 16; ++k) {
    LeftPart left;
    LeftOfSums<kDType>(left, weights[2 * k], weights[2 * k + 1]);
#pragma unroll
    for (int n = 0; n < kCols / 16; ++n) {
      if (16 * n >= dim) continue;
      RightPart right[2];
      LoadRight(right, rows + 16 * k, 2 * n);
      MultiplyAdd<kDType>(sums[2 * n], left, right[0]);
      MultiplyAdd<kDType>(sums[2 * n + 1], left, right[1]);
    }
  }
}

/// @}

/// Calls f(DTypeConstant<dtype>(), a constant of the tiles' columns).
template <typename F>
void DispatchMma(const AttentionArgs& args, F&& f) {
  const auto of_dtype = [&](auto dtype) {
    if (args.head_dim <= 64) return f(dtype, std::integral_constant<int, 64>());
    return f(dtype, std::integral_constant<int, kMmaMostCols>());
  };
  if (args.dtype == DType::kBFloat16) {
    return of_dtype(DTypeConstant<DType::kBFloat16>());
  }
  return of_dtype(DTypeConstant<DType::kFloat16>());
}

/// Returns the geometry of kernels with `rows` rows of each of `heads` heads.
inline LaunchGeometry MmaGeometryOf(const AttentionArgs& args, int64_t heads,
                                    int64_t rows) {
  return GeometryOfTiles(args.batch * heads, rows, kMmaRows, kMmaWarps,
                         args.head_dim > 0 ? 1 : 0);
}

}  // namespace crosshatch::internal::attention

#endif  // CROSSHATCH_TENSOR_KERNELS_CUDA_ATTENTION_MMA_CUH_
