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
#include <type_traits>

#include "crosshatch/tensor/kernels/cuda/async_copy.cuh"
#include "crosshatch/tensor/kernels/cuda/attention_geometry.h"
#include "crosshatch/tensor/kernels/cuda/attention_scores.cuh"
#include "crosshatch/tensor/kernels/cuda/element.cuh"
#include "crosshatch/tensor/kernels/cuda/mma.cuh"
#include "crosshatch/tensor/kernels/cuda/warps.cuh"

namespace crosshatch::internal::attention {

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

/// Copies rows of a head to tiles in shared memory, asynchronously unless the
/// head's rows are no vectors. All kMmaThreads threads of a block copy
/// together. \tparam kVectors whether all rows are known to be vectors
template <int kCols, bool kVectors>
class RowCopier {
 public:
  __device__ __forceinline__ RowCopier(const Head& head, int dim)
      : row_(static_cast<int>(threadIdx.x) / kEights),
        eight_(static_cast<int>(threadIdx.x) % kEights),
        count_(dim - 8 * eight_ < 8 ? dim - 8 * eight_ : 8),
        length_(static_cast<int>(head.length) - row_),
        stride_(head.time_stride),
        is_vector_(
            kVectors ||
            IsOfVectors(static_cast<const uint16_t*>(head.data) + head.first,
                        head.time_stride)),
        from_(static_cast<const uint16_t*>(head.data) + head.first +
              row_ * stride_ + 8 * eight_) {
    if (count_ < 0) count_ = 0;
  }

  /// Copies kRows rows from `row` on; zeros outside of the head.
  template <int kRows>
  __device__ __forceinline__ void Start(TileRow<kCols>* tile, int row) const {
    static_assert(kRows % kStep == 0);
    const uint16_t* from = from_ + row * stride_;
    Eight* const to = &tile[row_].eights[eight_];
    const int left = length_ - row;
#pragma unroll
    for (int r = 0; r < kRows; r += kStep) {
      const int count = r < left ? count_ : 0;
      Eight* const to_row = to + r * (kEights + 1);
      if (is_vector_) {
        StartCopy(to_row, from, 2 * count);
      } else {
        *to_row = LoadEight(from, count, /*is_vector=*/false);
      }
      from += kStep * stride_;
    }
  }

 private:
  static constexpr int kEights = kCols / 8;
  static constexpr int kStep = kMmaThreads / kEights;
  int row_;
  int eight_;
  int count_;
  int length_;
  int64_t stride_;
  bool is_vector_;
  const uint16_t* from_;
};

/// Loads the warp's rows, of a tile of its own, as left matrices.
template <int kCols>
__device__ __forceinline__ void LoadLefts(const TileRow<kCols>* own, int dim,
                                          MmaLeft<kCols>& left) {
#pragma unroll
  for (int k = 0; k < kCols / 16; ++k) {
    if (16 * k < dim) LoadLeft(left[k], own, 2 * k);
  }
}

/// Stores the warp's 16 rows from `row` on, each times its factor, via `own`:
/// the kWidth columns from `col` on.
template <DType kDType, int kWidth, int kCols>
__device__ __forceinline__ void StoreRows(TileRow<kCols>* own, int col,
                                          const MmaSums<kWidth>& sums,
                                          const float (&factors)[2],
                                          const HeadsOutput& out, int64_t batch,
                                          int64_t head, int64_t row,
                                          int64_t length, int dim) {
  constexpr int kEights = kWidth / 8;
  const int first = col / 8;
#pragma unroll
  for (int n = 0; n < kEights; ++n) {
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      own[RowOf(i)].eights[first + n].values[LaneOfWarp() % 4] = PairOf<kDType>(
          sums[n][i] * factors[i / 2], sums[n][i + 1] * factors[i / 2]);
    }
  }
  __syncwarp();
  uint16_t* const data = static_cast<uint16_t*>(out.data) +
                         batch * out.batch_stride + head * out.head_stride;
  const bool is_vector = IsOfVectors(data, out.time_stride);
  for (int i = LaneOfWarp(); i < kMmaRows * kEights; i += kWarpThreads) {
    const int64_t t = row + i / kEights;
    const int d = col + i % kEights * 8;
    if (t >= length || d >= dim) continue;
    StoreEight(data + t * out.time_stride + d,
               own[i / kEights].eights[first + i % kEights], dim - d,
               is_vector);
  }
}

/// @}
/// \name Products
/// @{

/// products += the warp's rows times the transpose of kRows rows of a tile.
template <DType kDType, int kCols, int kRows>
__device__ __forceinline__ void AddProducts(const MmaLeft<kCols>& left,
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

/// The same with rows in a tile of the warp's own, for fewer registers.
template <DType kDType, int kCols, int kRows>
__device__ __forceinline__ void AddProducts(const TileRow<kCols>* own,
                                            const TileRow<kCols>* rows, int dim,
                                            MmaSums<kRows>& products) {
#pragma unroll
  for (int k = 0; k < kCols / 16; ++k) {
    if (16 * k >= dim) continue;
    LeftPart left;
    LoadLeft(left, own, 2 * k);
#pragma unroll
    for (int n = 0; n < kRows / 16; ++n) {
      RightPart right[2];
      LoadRightOfTransposed(right, rows + 16 * n, 2 * k);
      MultiplyAdd<kDType>(products[2 * n], left, right[0]);
      MultiplyAdd<kDType>(products[2 * n + 1], left, right[1]);
    }
  }
}

/// sums += a left matrix times 16 rows of a tile, of which the columns are from
/// `col` on.
template <DType kDType, int kWidth, int kCols>
__device__ __forceinline__ void AddRows(const LeftPart& left,
                                        const TileRow<kCols>* rows, int col,
                                        int dim, MmaSums<kWidth>& sums) {
#pragma unroll
  for (int n = 0; n < kWidth / 16; ++n) {
    if (col + 16 * n >= dim) continue;
    RightPart right[2];
    LoadRight(right, rows, col / 8 + 2 * n);
    MultiplyAdd<kDType>(sums[2 * n], left, right[0]);
    MultiplyAdd<kDType>(sums[2 * n + 1], left, right[1]);
  }
}

/// sums += weights, rounded to kDType, times kRows rows of a tile.
template <DType kDType, int kCols, int kRows>
__device__ __forceinline__ void AddWeighted(const MmaSums<kRows>& weights,
                                            const TileRow<kCols>* rows, int dim,
                                            MmaSums<kCols>& sums) {
  // Lanes diverge when they compute their weights and multiply together.
  __syncwarp();
#pragma unroll
  for (int k = 0; k < kRows / 16; ++k) {
    LeftPart left;
    LeftOfSums<kDType>(left, weights[2 * k], weights[2 * k + 1]);
    AddRows<kDType, kCols>(left, rows + 16 * k, 0, dim, sums);
  }
}

/// sums += 16 rows of the tile `lefts`, of kRows columns, times kRows rows of a
/// tile, of which the columns are from `col` on.
template <DType kDType, int kWidth, int kRows, int kCols>
__device__ __forceinline__ void AddTiles(const TileRow<kRows>* lefts,
                                         const TileRow<kCols>* rows, int col,
                                         int dim, MmaSums<kWidth>& sums) {
#pragma unroll
  for (int k = 0; k < kRows / 16; ++k) {
    LeftPart left;
    LoadLeft(left, lefts, 2 * k);
    AddRows<kDType, kWidth>(left, rows + 16 * k, col, dim, sums);
  }
}

/// sums += the transpose of 16 columns from `left_col` on of the tile `lefts`,
/// of kRows rows, times as many rows of another, of which the columns are from
/// `col` on.
template <DType kDType, int kWidth, int kRows, int kLeftCols, int kCols>
__device__ __forceinline__ void AddTransposed(const TileRow<kLeftCols>* lefts,
                                              int left_col,
                                              const TileRow<kCols>* rows,
                                              int col, int dim,
                                              MmaSums<kWidth>& sums) {
#pragma unroll
  for (int k = 0; k < kRows / 16; ++k) {
    LeftPart left;
    LoadLeftOfTransposed(left, lefts + 16 * k, left_col / 8);
    AddRows<kDType, kWidth>(left, rows + 16 * k, col, dim, sums);
  }
}

/// @}

/// Calls f(DTypeConstant<dtype>(), a constant of the tiles' columns,
/// std::bool_constant<is_plain>()).
template <typename F>
void DispatchMma(const AttentionArgs& args, bool is_plain, F&& f) {
  const auto of_cols = [&](auto dtype, auto cols) {
    if (is_plain) return f(dtype, cols, std::true_type());
    return f(dtype, cols, std::false_type());
  };
  const auto of_dtype = [&](auto dtype) {
    switch (MmaColsOf(args.head_dim)) {
      case 64:
        return of_cols(dtype, std::integral_constant<int, 64>());
      case 128:
        return of_cols(dtype, std::integral_constant<int, 128>());
      default:
        return of_cols(dtype, std::integral_constant<int, kMmaMostCols>());
    }
  };
  if (args.dtype == DType::kBFloat16) {
    return of_dtype(DTypeConstant<DType::kBFloat16>());
  }
  return of_dtype(DTypeConstant<DType::kFloat16>());
}

}  // namespace crosshatch::internal::attention

#endif  // CROSSHATCH_TENSOR_KERNELS_CUDA_ATTENTION_MMA_CUH_
