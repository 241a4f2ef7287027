// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_CUDA_ATTENTION_GEOMETRY_H_
#define CROSSHATCH_TENSOR_KERNELS_CUDA_ATTENTION_GEOMETRY_H_

/// \file
/// The kernels of attention for a problem, and their blocks and threads: pure
/// functions of the problem.

#include <cstdint>

#include "crosshatch/tensor/kernels/attention_kernels.h"
#include "crosshatch/tensor/kernels/cuda/launch_geometry.h"

namespace crosshatch::internal::attention {

/// Returns blocks for `rows` rows of each of `heads` heads, over all batch
/// rows, and for `col_blocks` parts of their columns. Each warp has `of_warp`
/// rows. A block has as many warps as a head has work for, up to `most_warps`.
/// Blocks are of one head each, ordered by head, then rows.
LaunchGeometry GeometryOfTiles(int64_t heads, int64_t rows, int of_warp,
                               int most_warps, int64_t col_blocks);

/// \name The warp-product kernels (attention_mma.h)
/// @{

inline constexpr int kMmaRows = 16;  // Of a warp.
inline constexpr int kMmaWarps = 4;
/// Queries of a tile in the gradients.
inline constexpr int kMmaQueries = 32;
/// The maximum columns of a head.
inline constexpr int64_t kMmaMostCols = 256;

/// Returns whether warps compute the products of attention on tensor cores: for
/// 16-bit operands with heads that are not too wide.
bool IsByMma(const AttentionArgs& args);

/// Returns the columns of the tiles for a head: 64, 128 or 256.
constexpr int MmaColsOf(int64_t head_dim) {
  return head_dim <= 64 ? 64 : head_dim <= 128 ? 128 : 256;
}

/// Returns the keys of a block in the gradients.
constexpr int MmaKeysOf(int cols) { return cols > 128 ? 32 : 64; }

/// Returns whether vectors of eight elements can be read from, or written to,
/// all rows of the heads.
bool HasVectorRows(const HeadsInput& x);
bool HasVectorRows(const HeadsOutput& x);

/// Returns whether kernels without conditions for rare cases can compute the
/// problem: no mask, slopes or dropout, heads that fill the tiles, rows of
/// vectors, and a scale with which a finite product stays finite.
bool IsPlain(const AttentionArgs& args);
bool IsPlain(const AttentionBackwardArgs& args);

/// Returns blocks of kMmaWarps warps for `of_block` of `rows` rows of each of
/// `heads` heads each, ordered by head, then rows. None if heads have no
/// columns.
LaunchGeometry MmaGeometry(const AttentionArgs& args, int64_t heads,
                           int64_t rows, int of_block);

/// The workspace of the gradients: float deltas, and the MaskShifts, if any;
/// then the sums of dq, and the counts that order them (attention_dq.cuh).
struct MmaBackwardLayout {
  explicit MmaBackwardLayout(const AttentionArgs& args);

  int64_t query_tiles;  ///< Of a head.
  int64_t sums_offset;
  int64_t counts_offset;
  int64_t bytes;
};

/// @}

}  // namespace crosshatch::internal::attention

#endif  // CROSSHATCH_TENSOR_KERNELS_CUDA_ATTENTION_GEOMETRY_H_
