// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_CUDA_MMA_CUH_
#define CROSSHATCH_TENSOR_KERNELS_CUDA_MMA_CUH_

/// \file
/// Products of bf16 or f16 matrices that the lanes of a warp compute together
/// on tensor cores: a 16 x 16 left matrix times a 16 x 8 right one, added to
/// float sums. Each lane has its part of them in registers. With g = lane / 4
/// and t = lane % 4, its sums are in the rows g (the first two) and g + 8, and
/// in the columns 2t and 2t + 1. Its part of the left matrix is in the same
/// rows, so that the sums of two adjacent products, rounded to 16 bits, are a
/// left matrix of the next one (LeftOfSums).
///
/// Both matrices come from tiles in shared memory, whose rows are TileRows. All
/// lanes of the warp call each of these functions together.
///
/// Products of two elements are exact. The rounding of sums is not specified:
/// devices shift the terms of a sum, 16 and the old value, to the largest
/// exponent and truncate, which loses up to a unit in the last place of the
/// largest for each, twice as much as rounding.

#include <cstdint>

#include "crosshatch/tensor/dtype.h"
#include "crosshatch/tensor/kernels/cuda/cuda_api.cuh"
#include "crosshatch/tensor/kernels/cuda/element.cuh"
#include "crosshatch/tensor/kernels/cuda/warps.cuh"

#if defined(CROSSHATCH_CUDA_EMULATION)
#include "crosshatch/emulation/warp_matrix.h"
#endif

namespace crosshatch::internal {

/// Eight elements of 16 bits as pairs, the first of each in the lower bits.
using Eight = Pack<uint32_t, 4>;

/// A row of a tile in shared memory, `kCols` elements. Eight unused elements
/// follow: with them the same columns of eight rows are in different banks, for
/// every kCols that is a multiple of 32.
template <int kCols>
struct TileRow {
  static_assert(kCols % 32 == 0);
  Eight eights[kCols / 8 + 1];
};

/// A lane's part of the left matrix, of a right one, and of the sums.
using LeftPart = uint32_t[4];
using RightPart = uint32_t[2];
using SumsPart = float[4];

/// sums += left right, whose elements are of dtype D.
template <DType D>
__device__ __forceinline__ void MultiplyAdd(SumsPart& sums,
                                            const LeftPart& left,
                                            const RightPart& right) {
  static_assert(D == DType::kBFloat16 || D == DType::kFloat16);
#if defined(CROSSHATCH_CUDA_EMULATION)
  emulation::MultiplyAdd(sums, left, right, [](uint16_t bits) {
    return FromStored<float, D>(bits);
  });
#else
#define CH_MMA(type)                                                           \
  asm("mma.sync.aligned.m16n8k16.row.col.f32." type "." type                   \
      ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "                    \
      "{%0, %1, %2, %3};"                                                      \
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])             \
      : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right[0]), \
        "r"(right[1]))
  if constexpr (D == DType::kBFloat16) {
    CH_MMA("bf16");
  } else {
    CH_MMA("f16");
  }
#undef CH_MMA
#endif
}

/// Loads four matrices of 8 x 8, of which lane l points to row l % 8 of number
/// l / 8; transposed if kTransposed.
template <bool kTransposed>
__device__ __forceinline__ void LoadMatrices(uint32_t (&pairs)[4],
                                             const Eight* row) {
#if defined(CROSSHATCH_CUDA_EMULATION)
  emulation::LoadMatrices(pairs, row, kTransposed);
#else
#define CH_LDMATRIX(how)                                                   \
  asm volatile("ldmatrix.sync.aligned.m8n8.x4" how                         \
               ".shared.b16 {%0, %1, %2, %3}, [%4];"                       \
               : "=r"(pairs[0]), "=r"(pairs[1]), "=r"(pairs[2]),           \
                 "=r"(pairs[3])                                            \
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(row))) \
               : "memory")
  if constexpr (kTransposed) {
    CH_LDMATRIX(".trans");
  } else {
    CH_LDMATRIX("");
  }
#undef CH_LDMATRIX
#endif
}

/// Loads the left matrix: 16 rows of a tile, with the 16 columns from 8 *
/// `eight` on.
template <int kCols>
__device__ __forceinline__ void LoadLeft(LeftPart& left,
                                         const TileRow<kCols>* rows,
                                         int eight) {
  const int lane = LaneOfWarp();
  LoadMatrices<false>(left, &rows[lane % 16].eights[eight + lane / 16]);
}

/// Loads the left matrix whose 16 columns are 16 rows of a tile, of which its
/// rows are the 16 columns from 8 * `eight` on.
template <int kCols>
__device__ __forceinline__ void LoadLeftOfTransposed(LeftPart& left,
                                                     const TileRow<kCols>* rows,
                                                     int eight) {
  const int lane = LaneOfWarp();
  LoadMatrices<true>(
      left, &rows[lane / 16 * 8 + lane % 8].eights[eight + lane / 8 % 2]);
}

/// Loads two adjacent right matrices, whose 16 columns are 16 rows of a tile,
/// with the 16 columns from 8 * `eight` on: the product is with the transpose
/// of the tile.
template <int kCols>
__device__ __forceinline__ void LoadRightOfTransposed(
    RightPart (&right)[2], const TileRow<kCols>* rows, int eight) {
  const int lane = LaneOfWarp();
  uint32_t pairs[4];
  LoadMatrices<false>(
      pairs, &rows[lane / 16 * 8 + lane % 8].eights[eight + lane / 8 % 2]);
  right[0][0] = pairs[0];
  right[0][1] = pairs[1];
  right[1][0] = pairs[2];
  right[1][1] = pairs[3];
}

/// Loads two adjacent right matrices, whose 16 rows are those of a tile, with
/// the 16 columns from 8 * `eight` on.
template <int kCols>
__device__ __forceinline__ void LoadRight(RightPart (&right)[2],
                                          const TileRow<kCols>* rows,
                                          int eight) {
  const int lane = LaneOfWarp();
  uint32_t pairs[4];
  LoadMatrices<true>(pairs, &rows[lane % 16].eights[eight + lane / 16]);
  right[0][0] = pairs[0];
  right[0][1] = pairs[1];
  right[1][0] = pairs[2];
  right[1][1] = pairs[3];
}

/// Two numbers rounded to dtype D.
template <DType D>
__device__ __forceinline__ uint32_t PairOf(float first, float second) {
#if defined(CROSSHATCH_CUDA_EMULATION)
  return ToStored<D>(first) | static_cast<uint32_t>(ToStored<D>(second)) << 16;
#else
  uint32_t pair;
  if constexpr (D == DType::kBFloat16) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  }
  return pair;
#endif
}

/// Returns the left matrix whose columns are those of two adjacent products.
template <DType D>
__device__ __forceinline__ void LeftOfSums(LeftPart& left,
                                           const SumsPart& first,
                                           const SumsPart& second) {
  left[0] = PairOf<D>(first[0], first[1]);
  left[1] = PairOf<D>(first[2], first[3]);
  left[2] = PairOf<D>(second[0], second[1]);
  left[3] = PairOf<D>(second[2], second[3]);
}

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_TENSOR_KERNELS_CUDA_MMA_CUH_
